//! What the first comment of each example says of its length is so.

/// An example, and the most lines and imported names that it may ask of its user.
struct Example {
    source: &'static str,
    most_lines: usize,
    most_names: usize,
}

const EXAMPLES: [Example; 2] = [
    Example { source: include_str!("../../examples/tun.rs"), most_lines: 30, most_names: 6 },
    Example { source: include_str!("../../examples/in_place.rs"), most_lines: 30, most_names: 8 },
];

/// Lines between the two markers that are neither blank nor comments.
fn own_lines(source: &str) -> Vec<&str> {
    let (_, from_begin) =
        source.split_once("// The user's own lines begin here.\n").expect("the first marker");
    let (own, _) =
        from_begin.split_once("// The user's own lines end here.\n").expect("the second marker");
    own.lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .collect()
}

/// Names that are imported from the crate's root: the only import of the crate there is.
fn imported_names(source: &str) -> Vec<&str> {
    let imports: Vec<_> = source.match_indices("use superpacket::").collect();
    let [(start, import)] = imports[..] else { panic!("{} imports of the crate", imports.len()) };
    let (names, _) = source[start + import.len()..].split_once(';').expect("the import ends");
    let names =
        names.strip_prefix('{').and_then(|names| names.strip_suffix('}')).expect("a list of names");
    assert!(!names.contains("::"), "{names} are not all from the root");
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_examples_import_from_the_root_alone() {
    let umem = include_str!("../../examples/umem.rs");
    for source in EXAMPLES.iter().map(|example| example.source).chain([umem]) {
        let imports: Vec<_> =
            source.lines().filter(|line| line.starts_with("use superpacket")).collect();
        assert!(!imports.is_empty());
        for import in imports {
            assert!(
                import.starts_with("use superpacket::{") && import.matches("::").count() == 1,
                "{import} is not of the root"
            );
        }
    }
}

#[test]
fn the_page_on_adopting_says_how_many_lines_the_example_for_vpns_takes() {
    let page = include_str!("../../../../docs/adopting.md");
    let statement = format!(
        "(../crates/superpacket/examples/tun.rs), {} lines;",
        own_lines(EXAMPLES[0].source).len()
    );
    assert!(page.contains(&statement), "it does not say: {statement}");
}

#[test]
fn the_first_comment_says_how_many_lines_and_names_the_user_needs() {
    for Example { source, most_lines, most_names } in EXAMPLES {
        let (lines, names) = (own_lines(source).len(), imported_names(source).len());
        assert!(lines <= most_lines && names <= most_names, "{lines} lines, {names} names");
        let comment = source.lines().take_while(|line| line.starts_with("//! "));
        let first = comment.map(|line| &line[4..]).collect::<Vec<_>>().join(" ");
        let statement = format!("{lines} lines of the user's own and {names} imported names");
        assert!(first.contains(&statement), "{first:?} does not say: {statement}");
    }
}
