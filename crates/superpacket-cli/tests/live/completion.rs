//! Shell completion with the candidates of a running bridge.

use super::*;

/// Returns the candidates for the end of this line, and the time that the program took.
fn completed(
    network: &TestNetwork,
    socket: &std::path::Path,
    line: &[&str],
) -> (Vec<String>, Duration) {
    let started = Instant::now();
    let mut command = network.middle.command(env!("CARGO_BIN_EXE_superpacket"));
    command.args(["--", "superpacket", line[0], "--control"]).arg(socket).args(&line[1..]);
    command
        .env("_SUPERPACKET_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (line.len() + 2).to_string());
    let output = command.output().expect("runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {}", stderr(&output));
    let words = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|word| !word.starts_with('-'))
        .map(str::to_owned)
        .collect();
    (words, started.elapsed())
}

#[test]
fn ports_and_offloads_of_the_running_bridge_are_completed() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&["left=packet:left", "packet:right?ring=1m&slot=4k"]);
    let ports = ["left", "packet:right?ring=1m&slot=4k"];
    let words = |line: &[&str]| completed(&network, &network.socket(), line).0;
    for command in ["features", "stats", "ports", "limits", "rps", "monitor"] {
        assert_eq!(words(&[command, ""]), ports, "{command}");
    }
    assert_eq!(words(&["features", "le"]), ["left"]);
    assert_eq!(words(&["features", "left", "generic-r"]), ["generic-receive-offload"]);
    assert_eq!(
        words(&["features", "left", ""]).len(),
        superpacket_port::features::Feature::ALL.len()
    );
    assert_eq!(words(&["features", "left", "generic-receive-offload", ""]), ["on", "off"]);
    assert_eq!(words(&["port", "set", ""]), ports);
    assert_eq!(words(&["port", "del", "p"]), ports[1..]);
    assert_eq!(words(&["port", "add", ""]), [""; 0], "a new port is none of those that are there");
    assert_eq!(words(&["port", "set", "left", "iso"]), ["isolated"]);
    assert_eq!(
        words(&["port", "set", "left", "isolated", "on", "too_big", ""]),
        ["drop", "icmp", "fragment"]
    );
    assert_eq!(words(&["limits", "left", "storm_b"]), ["storm_broadcast"]);
    assert_eq!(words(&["limits", "left", "delivery", ""]), ["per-poll", "at-once"]);
    assert_eq!(words(&["fdb", "show", "dev", ""]), ports);
    assert_eq!(words(&["mdb", "show", "dev", ""]), ports);
    assert_eq!(words(&["vlan", "add", "dev", "l"]), ["left"]);
    assert_eq!(words(&["vlan", "add", "dev", "left", "v"]), ["vid"]);
    // Without a bridge there are no candidates; a bridge that does not answer is not waited for.
    assert_eq!(
        completed(&network, &network.bench.path("absent.sock"), &["features", ""]).0,
        [""; 0]
    );
    let silent = network.bench.path("silent.sock");
    let _listens = std::os::unix::net::UnixListener::bind(&silent).expect("binds");
    let (nothing, took) = completed(&network, &silent, &["features", "left", ""]);
    assert!(nothing.is_empty() && took < Duration::from_secs(4), "{nothing:?} {took:?}");
}

#[test]
fn bash_completes_port_strings_although_it_splits_them_at_colons() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&["left=packet:left", "packet:right?ring=1m&slot=4k"]);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_superpacket"));
    let path = format!(
        "{}:{}",
        program.parent().expect("a directory").display(),
        std::env::var("PATH").expect("set")
    );
    let control = network.socket().display().to_string();
    let right = r"packet:right\?ring=1m\&slot=4k";
    // The words as bash splits them, and the word that it takes to be at the cursor.
    for (parted, current, expected) in [
        (&["le"][..], "le", "left"),
        (&["pac"], "pac", right),
        (&["packet", ":"], "", &right[7..]),
        (&["packet", ":", "ri"], "ri", &right[7..]),
        (&["left", " gen"], "gen", "generic-receive-offload"),
        (&["'packet:r"], "packet:r", "packet:right?ring=1m&slot=4k"),
    ] {
        let line = format!("superpacket features --control {control} {}", parted.concat());
        let words: Vec<String> = parted.iter().map(|word| format!("\"{}\"", word.trim())).collect();
        let script = format!(
            "source <(superpacket completions bash) && COMP_LINE=\"{line}\" COMP_POINT=${{#COMP_LINE}} \
             && COMP_WORDS=(superpacket features --control {control} {}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) \
             && COMP_WORDBREAKS=$' \\t\\n\"\\'@><=;|&(:' && _superpacket superpacket \"{current}\" '' && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" ")
        );
        let output = network
            .middle
            .command("bash")
            .args(["--norc", "-c", &script])
            .env("PATH", &path)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<&str> = text.lines().filter(|word| !word.starts_with('-')).collect();
        assert_eq!(words, [expected], "{parted:?}: {}", stderr(&output));
    }
}
