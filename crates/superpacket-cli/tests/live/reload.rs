//! SIGHUP: what the file says is done, and what commands have changed is undone or kept.

use super::*;

#[test]
fn sighup_rereads_the_file_and_a_bad_file_changes_nothing() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("writes");
    write("[[port]]\nport = \"packet:left\"\n");
    let bridge = house.bridge(&["--config", &file.display().to_string()]);
    assert_eq!(house.ask(&["ports"]).expect("answers").as_array().map(Vec::len), Some(1));
    write(
        "[[port]]\nport = \"packet:left\"\nfeatures = { gro = false }\n[[port]]\nport = \"packet:right\"\n",
    );
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the new port", || {
        house
            .ask(&["ports"])
            .is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 2))
    });
    house.wait_for("the end of the change", || house.log().contains("the file is in force"));
    assert!(house.text(&["features", PORTS[0]]).1.contains("generic-receive-offload: off\n"));
    assert!(house.reaches(), "{}", house.log());
    write("[[port]]\nport = \"packet:left\"\nspeed = 9\n");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the error", || house.log().contains("bridge.toml:3: unknown field `speed`"));
    assert_eq!(house.ask(&["ports"]).expect("goes on").as_array().map(Vec::len), Some(2));
    assert!(house.reaches());
    write("[[port]]\nport = \"packet:right\"\n");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the port to go", || {
        house
            .ask(&["ports"])
            .is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 1))
    });
    house.wait_for("the warning", || house.log().matches("the bridge has one port").count() == 2);
    assert!(house.log().contains("goes anywhere port=packet:right"), "{}", house.log());
    bridge.signal(rustix::process::Signal::INT);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
}

#[test]
fn sighup_says_what_it_undoes_of_what_commands_changed_and_keeps_it_where_that_is_asked_for() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let ports = "[[port]]\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n";
    let isolated = |house: &House| {
        house.ask(&["limits", PORTS[0]]).expect("answers")[0]["forwarding"]["isolated"] == true
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
        let bridge = house.bridge(&[&["--config", &file][..], arguments].concat());
        assert!(house.text(&["limits", PORTS[0], "isolated", "on"]).0 == Some(0));
        // The second time, what was kept is still what a command changed.
        for times in 1..=2 {
            bridge.signal(rustix::process::Signal::HUP);
            house.wait_for("the end of the change", || {
                house.log().matches("the file is in force").count() == times
            });
            assert_eq!(isolated(&house), stays, "{}", house.log());
            assert_eq!(
                house.log().matches(says).count(),
                if stays { times } else { 1 },
                "{}",
                house.log()
            );
        }
        bridge.signal(rustix::process::Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    }
}

#[test]
fn a_named_port_whose_string_the_file_changes_is_the_same_port() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let write = |left: &str| {
        let right = "[[port]]\nname = \"right\"\nport = \"packet:right\"\n";
        std::fs::write(&file, format!("[[port]]\nname = \"left\"\nport = \"{left}\"\n{right}"))
            .expect("writes");
    };
    write("packet:left");
    let bridge = house.bridge(&["--config", &file.display().to_string(), "--on-reload", "keep"]);
    assert!(house.reaches(), "{}", house.log());
    house.ask(&["limits", "left", "isolated", "on"]).expect("sets");
    house.ask(&["fdb", "add", "02:00:00:00:00:77", "dev", "left", "static"]).expect("adds");
    let stats = |port: &str| house.ask(&["stats", port]).expect("answers")[0].clone();
    let before = stats("left");
    write("packet:left?version=v3");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the end of the change", || house.log().contains("the file is in force"));
    let ports = house.ask(&["ports"]).expect("answers");
    assert_eq!(
        (&ports[0]["port"], &ports[0]["string"]),
        (&"left".into(), &"packet:left?version=v3".into())
    );
    assert_eq!(
        (&ports[0]["reopened"], &ports[1]["reopened"], &ports[0]["forwarding"]["isolated"]),
        (&1.into(), &0.into(), &true.into())
    );
    assert!(
        stats("left")["rx_packets"].as_u64() >= before["rx_packets"].as_u64(),
        "what it counted stays"
    );
    assert!(
        house.text(&["fdb", "show", "static"]).1.contains("02:00:00:00:00:77 dev left"),
        "its entries stay"
    );
    assert!(house.reaches(), "{}", house.log());
    // What cannot be opened so is open as before: a veth has one queue.
    write("xdp:left?queue=9");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the error", || {
        house.log().contains("left: it cannot be opened as xdp:left?queue=9: ")
    });
    assert!(
        house.log().contains("; it is open as before, as packet:left?version=v3"),
        "{}",
        house.log()
    );
    assert_eq!(
        house.ask(&["ports", "left"]).expect("answers")[0]["string"],
        "packet:left?version=v3"
    );
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn sighup_undoes_or_keeps_the_port_string_that_a_command_has_changed() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
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
        let bridge = house.bridge(&["--config", &file.display().to_string(), "--on-reload", word]);
        house.ask(&["port", "set", "left", "ring=8m"]).expect("sets");
        bridge.signal(rustix::process::Signal::HUP);
        house.wait_for("the end of the change", || house.log().contains("the file is in force"));
        assert!(house.log().contains(says), "{}", house.log());
        assert_eq!(house.ask(&["ports", "left"]).expect("answers")[0]["string"], string);
        assert!(house.reaches(), "{}", house.log());
        bridge.signal(rustix::process::Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    }
}
