//! SIGHUP: the file is applied, and changes by commands are undone or kept.

use super::*;

#[test]
fn sighup_reads_the_file_again_and_a_bad_file_changes_nothing() {
    let Some(network) = TestNetwork::new() else { return };
    let file = network.bench.path("bridge.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("writes");
    write("[[port]]\nport = \"packet:left\"\n");
    let bridge = network.bridge(&["--config", &file.display().to_string()]);
    assert_eq!(network.ask(&["ports"]).as_array().map(Vec::len), Some(1));
    write(
        "[[port]]\nport = \"packet:left\"\nfeatures = { gro = false }\n[[port]]\nport = \"packet:right\"\n",
    );
    bridge.signal(Signal::HUP);
    network.wait_for("the new port", || {
        network
            .try_ask(&["ports"])
            .is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 2))
    });
    network.wait_for("the end of the change", || network.log().contains("the file is applied"));
    assert!(network.text(&["features", PORTS[0]]).1.contains("generic-receive-offload: off\n"));
    assert!(network.reaches(), "{}", network.log());
    write("[[port]]\nport = \"packet:left\"\nspeed = 9\n");
    bridge.signal(Signal::HUP);
    network
        .wait_for("the error", || network.log().contains("bridge.toml:3: unknown field `speed`"));
    assert_eq!(network.ask(&["ports"]).as_array().map(Vec::len), Some(2));
    assert!(network.reaches());
    write("[[port]]\nport = \"packet:right\"\n");
    bridge.signal(Signal::HUP);
    network.wait_for("the port to go", || {
        network
            .try_ask(&["ports"])
            .is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 1))
    });
    network.wait_for("the warning", || {
        network.log().matches("the bridge has only one port").count() == 2
    });
    assert!(network.log().contains("dropped port=packet:right"), "{}", network.log());
    bridge.signal(Signal::INT);
    assert_eq!(bridge.end().0, Some(0), "{}", network.log());
}

#[test]
fn sighup_reports_which_changes_by_commands_it_undoes_or_keeps() {
    let Some(network) = TestNetwork::new() else { return };
    let file = network.bench.path("bridge.toml");
    let ports = "[[port]]\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n";
    let isolated = |network: &TestNetwork| {
        network.ask(&["limits", PORTS[0]])[0]["settings"]["isolated"] == true
    };
    for (more, arguments, says, stays) in [
        (
            "",
            &[][..],
            "packet:left: isolated is off now, as the file says; by command it was on",
            false,
        ),
        ("", &["--on-reload", "keep"], "packet:left: isolated stays on, as set by command", true),
        (
            "[bridge]\non-reload = \"keep\"\n",
            &[],
            "packet:left: isolated stays on, as set by command",
            true,
        ),
    ] {
        std::fs::write(&file, format!("{more}{ports}")).expect("writes");
        let file = file.display().to_string();
        let bridge = network.bridge(&[&["--config", &file][..], arguments].concat());
        assert!(network.text(&["limits", PORTS[0], "isolated", "on"]).0 == Some(0));
        // At the second reload, the kept setting still counts as changed by a command.
        for times in 1..=2 {
            bridge.signal(Signal::HUP);
            network.wait_for("the end of the change", || {
                network.log().matches("the file is applied").count() == times
            });
            assert_eq!(isolated(&network), stays, "{}", network.log());
            assert_eq!(
                network.log().matches(says).count(),
                if stays { times } else { 1 },
                "{}",
                network.log()
            );
        }
        bridge.signal(Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", network.log());
    }
}

#[test]
fn a_named_port_whose_string_the_file_changes_is_the_same_port() {
    let Some(network) = TestNetwork::new() else { return };
    let file = network.bench.path("bridge.toml");
    let write = |left: &str| {
        let right = "[[port]]\nname = \"right\"\nport = \"packet:right\"\n";
        std::fs::write(&file, format!("[[port]]\nname = \"left\"\nport = \"{left}\"\n{right}"))
            .expect("writes");
    };
    write("packet:left");
    let bridge = network.bridge(&["--config", &file.display().to_string(), "--on-reload", "keep"]);
    assert!(network.reaches(), "{}", network.log());
    network.ask("limits left isolated on");
    network.ask("fdb add 02:00:00:00:00:77 dev left static");
    let stats = |port: &str| network.ask(&["stats", port])[0].clone();
    let before = stats("left");
    write("packet:left?version=v3");
    bridge.signal(Signal::HUP);
    network.wait_for("the end of the change", || network.log().contains("the file is applied"));
    let ports = network.ask(&["ports"]);
    assert_json(&ports[0], json!({ "port": "left", "string": "packet:left?version=v3" }));
    assert_eq!(
        (&ports[0]["reopened"], &ports[1]["reopened"], &ports[0]["settings"]["isolated"]),
        (&1.into(), &0.into(), &true.into())
    );
    assert!(
        stats("left")["rx_packets"].as_u64() >= before["rx_packets"].as_u64(),
        "what it counted stays"
    );
    assert!(
        network.text("fdb show static").1.contains("02:00:00:00:00:77 dev left"),
        "its entries stay"
    );
    assert!(network.reaches(), "{}", network.log());
    // A veth has one queue, so this port cannot be opened and stays as before.
    write("xdp:left?queue=9");
    bridge.signal(Signal::HUP);
    network.wait_for("the error", || {
        network.log().contains("left: it cannot be opened as xdp:left?queue=9: ")
    });
    assert!(
        network.log().contains("; it is open as before, as packet:left?version=v3"),
        "{}",
        network.log()
    );
    assert_eq!(network.ask("ports left")[0]["string"], "packet:left?version=v3");
    assert!(network.reaches(), "{}", network.log());
}

#[test]
fn sighup_undoes_or_keeps_the_port_string_that_a_command_has_changed() {
    let Some(network) = TestNetwork::new() else { return };
    let file = network.bench.path("bridge.toml");
    std::fs::write(
        &file,
        "[[port]]\nname = \"left\"\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n",
    )
    .expect("writes");
    for (word, says, string) in [
        (
            "undo",
            "left: the port string is packet:left now, as the file says; by command it was packet:left?ring=8m",
            "packet:left",
        ),
        (
            "keep",
            "left: the port string stays packet:left?ring=8m, as set by command",
            "packet:left?ring=8m",
        ),
    ] {
        let bridge =
            network.bridge(&["--config", &file.display().to_string(), "--on-reload", word]);
        network.ask("port set left ring=8m");
        bridge.signal(Signal::HUP);
        network.wait_for("the end of the change", || network.log().contains("the file is applied"));
        assert!(network.log().contains(says), "{}", network.log());
        assert_eq!(network.ask("ports left")[0]["string"], string);
        assert!(network.reaches(), "{}", network.log());
        bridge.signal(Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", network.log());
    }
}
