//! The numbers of lines in the first comment are right.

/// Counts the lines between `begin here.` and `end here.` that are neither blank nor comments.
fn own_lines(source: &str) -> usize {
    let from_begin =
        source.split_once("begin here.\n").expect("a comment that says where they begin").1;
    let own = from_begin.split_once("end here.\n").expect("a comment that says where they end").0;
    own.lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn the_first_comment_tells_how_many_lines_the_user_writes() {
    let device = include_str!("../src/lib.rs");
    let comment: Vec<_> = device
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .map(|line| line.trim_start_matches("//!"))
        .collect();
    let comment = comment.concat();
    let (own, tokens) = (own_lines(device), own_lines(include_str!("../src/tokens.rs")));
    assert!(own <= 80, "{own}");
    assert!(comment.contains(&format!("{own} lines of the user's own")), "{own}: {comment}");
    assert!(
        comment.contains(&format!("the {tokens} lines that smoltcp asks of every device")),
        "{tokens}: {comment}"
    );
}
