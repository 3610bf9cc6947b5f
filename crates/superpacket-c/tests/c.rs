//! Tests the C interface from C, by `tests/c/test.c`, and the header as C++.
//!
//! Needs a C compiler. Without one the tests say so and are skipped, unless CI is set.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use superpacket_traffic::generate::{Config, generate};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a program and returns what it prints.
fn run(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> String {
    let program = program.as_ref();
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{} {arguments:?}: {}\n{}{}",
        program.display(),
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Returns whether this compiler exists. With CI set, it must.
fn has(compiler: &str) -> bool {
    let found = cfg!(unix)
        && Command::new(compiler)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
    if !found {
        assert!(env::var_os("CI").is_none(), "there is no {compiler}");
        eprintln!("SKIPPED: there is no {compiler} here");
    }
    found
}

/// Returns the static library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("this test is a file");
    // Tests are in deps. The library is built into the same folder, but a test cannot name it.
    let folder = test.parent().expect("in a folder");
    let library = folder.join("libsuperpacket_c.a");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// Builds a program of tests/c with all warnings, and returns its path.
fn build(compiler: &str, arguments: &[&str], source: &str, to: &Path) -> PathBuf {
    let program = to.join(source.replace('.', "-"));
    let include = here().join("include");
    let source = here().join("tests/c").join(source);
    let library = library();
    let mut all: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    all.extend(
        ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-g", "-O1", "-I"]
            .map(OsStr::new),
    );
    all.extend([include.as_os_str(), source.as_os_str(), library.as_os_str()]);
    all.extend(["-lpthread", "-lm", "-ldl", "-o"].map(OsStr::new));
    all.push(program.as_os_str());
    run(compiler, &all);
    program
}

#[test]
fn each_function_from_c() {
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("cc", &["-std=c11"], "test.c", folder.path());
    let packets = folder.path().join("packets");
    let mut written = Vec::new();
    for seed in 0..20 {
        for packet in
            generate(seed, &Config::default(), 300).iter().filter(|packet| !packet.starts_at_ip)
        {
            written.extend_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
            written.extend_from_slice(&packet.bytes);
        }
    }
    fs::write(&packets, written).expect("written");
    let printed = run(&program, &[packets.as_os_str()]);
    print!("{printed}");
    assert!(printed.contains(" checks\n"), "{printed}");
}

#[test]
fn the_readme_compiles() {
    if !has("cc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let readme = fs::read_to_string(here().join("README.md")).expect("it is there");
    let blocks: Vec<&str> =
        readme.split("```c\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    let [function, statements] = blocks[..] else { panic!("{} blocks of C", blocks.len()) };
    let source = folder.path().join("readme.c");
    let program = format!(
        "#include <stdio.h>\n{function}\nint main(void) {{\n{statements}\nreturn send_aggregated(-1, batch, NULL, 0);\n}}\n"
    );
    fs::write(&source, program).expect("written");
    let (include, object) = (here().join("include"), folder.path().join("readme.o"));
    let fixed = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-c", "-o"].map(OsStr::new);
    let mut arguments = fixed.to_vec();
    arguments.extend([
        object.as_os_str(),
        source.as_os_str(),
        OsStr::new("-I"),
        include.as_os_str(),
    ]);
    run("cc", &arguments);
}

/// Programs with their own strict warnings include the header without a message.
#[test]
fn the_header_has_no_warnings() {
    let include = here().join("include");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("header.c");
    fs::write(&source, "#include <superpacket.h>\n").expect("written");
    let cases = [("cc", "c", "-std=c99"), ("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++11")];
    for (compiler, language, standard) in cases {
        if !has(compiler) {
            continue;
        }
        let flags = [
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wconversion",
            "-Wsign-conversion",
            "-Wshadow",
            "-Werror",
            "-fsyntax-only",
            "-x",
            language,
            standard,
            "-I",
        ];
        let mut arguments: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        arguments.extend([include.as_os_str(), source.as_os_str()]);
        run(compiler, &arguments);
    }
}

#[test]
fn the_header_is_cplusplus_too() {
    if !has("c++") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("c++", &["-std=c++11"], "header.cc", folder.path());
    assert_eq!(run(program, &[]), "SP_ERROR_NULL\n");
}
