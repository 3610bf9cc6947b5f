use std::time::Duration;

use superpacket::aggregate::Storage;
use superpacket_bridge::fdb::Station;
use superpacket_bridge::settings::{
    InPlace, NamedSettings, PortSettings, PortSteering, SettingType, SettingValue,
    SteeringSettings, TooBig,
};
use superpacket_bridge::vlan::VlanProtocol;
use superpacket_port::features::Feature;

use super::*;

#[test]
fn the_documented_example_says_what_its_comments_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bridge/bridge.toml");
    let config = Config::read(&path).expect("the example is right");
    assert_eq!(config.control.as_deref(), Some(Path::new("/run/superpacket/control.sock")));
    assert_eq!(config.metrics, Some(SocketAddr::from(([127, 0, 0, 1], 9600))));
    assert_eq!(config.user.as_deref(), Some("superpacket"));
    assert_eq!(config.on_reload, Some(OnReload::Undo));
    let BridgeSettings {
        ports,
        table_size,
        ageing_time,
        threads,
        busy_poll,
        vlan_filtering,
        vlan_protocol,
        multicast_snooping,
        shared_interfaces,
        steering,
    } = config.bridge;
    assert!(!vlan_filtering && !multicast_snooping && !shared_interfaces);
    assert_eq!(vlan_protocol, VlanProtocol::Dot1Q);
    assert_eq!((steering.max_backlog, steering.weight, steering.sock_flow_entries), (1000, 64, 0));
    assert_eq!(steering, SteeringSettings::default());
    let masks = &ports[0].steering.rps_cpus;
    assert_eq!(
        (masks.queue(0).list().to_string(), masks.queue(7).list().to_string()),
        ("0".into(), "0".into())
    );
    assert_eq!(
        (table_size, ageing_time, threads, busy_poll),
        (8192, Duration::from_secs(300), 0, false)
    );
    assert_eq!(
        ports.iter().map(|port| port.port.name()).collect::<Vec<_>>(),
        ["uplink", "tap:tap0"]
    );
    assert_eq!(ports[0].port.string(), "packet:eth0");
    let first = &ports[0];
    assert!(
        first.features.contains(Feature::GenericReceiveOffload)
            && first.features.contains(Feature::RxUdpGroForwarding)
    );
    assert!(
        !first.features.contains(Feature::TcpSegmentationOffload)
            && !first.features.contains(Feature::LargeReceiveOffload)
    );
    assert_eq!(
        (first.limits.gro_flush_timeout, first.limits.gro_max_size, first.too_big),
        (50_000, 65_535, TooBig::Icmp)
    );
    let mut second = PortSettings::new("tap:tap0".parse().expect("a port"));
    second.static_entries.insert(Station::parse("52:54:00:12:34:56", Some(10)).expect("a station"));
    assert_eq!(ports[1], second, "nothing else said: the defaults");
}

/// Checks the errors of files: (text, line of the error, part of the message).
fn assert_errors(cases: &[(&str, usize, &str)]) {
    for (text, line, says) in cases {
        let error = Config::parse(text, "bridge.toml").expect_err(text).to_string();
        assert!(error.starts_with(&format!("bridge.toml:{line}: ")), "{text}: {error}");
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn wrong_keys_and_port_names_are_reported_with_file_line_and_key() {
    assert_errors(&[
        ("[bridge]\nthreds = 1\n", 2, "unknown field `threds`, expected one of `threads`"),
        ("[bridge]\nthreads = \"many\"\n", 2, "threads = \"many\""),
        ("[bridge]\nthreads = 5000\n", 2, "threads is at most 1024"),
        ("[bridge]\ntable-size = 0\n", 2, "table-size is 1 to"),
        ("[bridge]\n\n\nageing-time = \"300\"\n", 4, "ageing-time: "),
        ("[bridge]\nmetrics = \"9600\"\n", 2, "metrics takes an address"),
        ("[[port]]\nport = \"eth0\"\n", 2, "starts with no kind"),
        ("[[port]]\nprt = \"packet:eth0\"\n", 2, "unknown field `prt`"),
        ("[[port]]\nforce-lro = true\n", 1, "missing field `port`"),
        (
            "[[port]]\nport = \"packet:a\"\n[[port]]\nport = \"packet:a\"\n",
            4,
            "there are two ports \"packet:a\"",
        ),
        (
            "[[port]]\nport = \"a=tap:x\"\n[[port]]\nname = \"a\"\nport = \"tap:y\"\n",
            5,
            "there are two ports \"a\": a name is one port's",
        ),
        ("[[port]]\nport = \"9=packet:a\"\n", 2, "port: name \"9\" does not begin with a letter"),
        (
            "[[port]]\nport = \"packet:a\"\nname = \"a b\"\n",
            3,
            "name \"a b\" is not 1 to 32 letters",
        ),
        (
            "[[port]]\nport = \"a=packet:a\"\nname = \"b\"\n",
            3,
            "name: the port string gives the port another name, \"a\"",
        ),
        (
            "[[port]]\nport = \"a=packet:a\"\n[[fdb]]\naddress = \"02:00:00:00:00:01\"\nport = \"packet:a\"\n",
            5,
            "the file has no port \"packet:a\": it has a",
        ),
    ]);
}

#[test]
fn wrong_settings_of_ports_are_reported_with_file_line_and_key() {
    for (settings, line, says) in [
        ("features = { turbo = true }\n", 3, "\"turbo\" is no offload"),
        ("[port.features]\ngro = true\ngeneric-receive-offload = false\n", 4, "is there twice"),
        (
            "gso-max-size = 99999999\n",
            3,
            "gso_max_size is 0 (what the port takes) or 68 to 524280 bytes",
        ),
        ("gro-max-size = 0\n", 3, "gro_max_size is 68 to 524280 bytes, not 0"),
        ("lro-max-aggr = 1\n", 3, "lro_max_aggr is 0 (no limit) or 2 to 65535 packets"),
        ("address-limit = 9999999\n", 3, "address_limit is 0 (half of the table) or 1 to 1048576"),
        ("storm-unknown = -1\n", 3, "expected u64"),
        (
            "rx-byte-burst = 5000000000\n",
            3,
            "rx_byte_burst is 0 (a tenth of a second's) or 1 to 4294967296",
        ),
        ("storage = \"heap\"\n", 3, "storage is fragments or linear"),
        ("delivery = 1\n", 3, "expected a string"),
        ("gro-flush-timeout = \"1h\"\n", 3, "gro_flush_timeout is at most"),
        ("gro_flush_timeout = \"1h\"\n", 3, "gro_flush_timeout is at most"),
        (
            "gro_flush_timeout = \"1ms\"\ngro-flush-timeout = \"1ms\"\n",
            1,
            "duplicate field `gro_flush_timeout`",
        ),
        ("too-big = \"explode\"\n", 3, "too_big is one of drop, icmp, fragment"),
        ("isolated = \"on\"\n", 3, "expected a boolean"),
        ("rps-cpus = \"fg\"\n", 3, "rps_cpus: EINVAL"),
        ("rps-cpus = [\"1\", \"1,,x\"]\n", 3, "\"x\""),
        ("rps-flow-cnt = 999999999999\n", 3, "rps_flow_cnt: EINVAL"),
        ("in-place-below = \"never\"\n", 3, "is \"auto\", or a number of packets a second"),
        ("in-place-below = -1\n", 3, "expected a number, a boolean or a word"),
    ] {
        let text = format!("[[port]]\nport = \"packet:a\"\n{settings}");
        assert_errors(&[(&text, line, says)]);
    }
}

#[test]
fn wrong_steering_vlans_and_static_entries_are_reported_with_file_line_and_key() {
    assert_errors(&[
        ("[steering]\nmax-backlog = 9\n", 2, "not a setting of steering"),
        (
            "[steering]\ndev-weight = 9\nnetdev-max-backlog = 0\n",
            3,
            "netdev_max_backlog is 1 to 65536 packets, not 0",
        ),
        ("[bridge]\nageing-time = \"201days\"\n", 2, "ageing-time is at most 200 days"),
        // The milliseconds do not fit in 64 bits.
        ("[bridge]\nageing-time = \"18446744073709552s\"\n", 2, "ageing-time is at most 200 days"),
        ("[bridge]\nvlan-filtering = 1\n", 2, "expected a boolean"),
        (
            "[bridge]\nvlan-protocol = \"802.1w\"\n",
            2,
            "vlan-protocol: \"802.1w\" is no protocol of VLAN tags: there are 802.1Q and",
        ),
        ("[bridge]\non-reload = \"forget\"\n", 2, "on-reload: it is undo or keep, not \"forget\""),
        (
            "[[port]]\nport = \"tap:a\"\nvlans = [\"10\", \"20-\"]\n",
            3,
            "vlans: \"20-\" is no VLAN: write 10, 10-20",
        ),
        (
            "[[port]]\nport = \"tap:a\"\nvlans = [\n\"10\",\n\"0\"]\n",
            5,
            "vlans: a VLAN is 1 to 4094, not 0",
        ),
        (
            "[[port]]\nport = \"tap:a\"\nvlans = [\"10-20 pvid\"]\n",
            3,
            "vlans: pvid is for one VLAN",
        ),
        (
            "[bridge]\nvlan-filtering = true\n[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"2:0:0:0:0:1\"\n",
            7,
            "fdb: the bridge filters by VLAN: say in which",
        ),
        ("[[fdb]]\naddress = \"02:00:00:00:00:01\"\n", 1, "missing field `port`"),
        (
            "[[fdb]]\naddress = \"02:00:00:00:00:01\"\nport = \"tap:b\"\n",
            3,
            "fdb: the file has no port \"tap:b\"",
        ),
        (
            "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"ff:ff:ff:ff:ff:ff\"\n",
            5,
            "fdb: ff:ff:ff:ff:ff:ff is a group's",
        ),
        (
            "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"02:00:00:00:00:01\"\nvlan = 0\n",
            5,
            "a VLAN is 1 to 4094",
        ),
        (
            "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"02:00:00:00:00:01\"\n\
             [[fdb]]\nport = \"tap:a\"\naddress = \"2:0:0:0:0:1\"\n",
            8,
            "fdb: 02:00:00:00:00:01 has an entry at tap:a already",
        ),
        ("[ports]\n", 1, "unknown field `ports`"),
        ("[bridge\n", 1, ""),
    ]);
}

#[test]
fn names_stand_in_the_string_or_beside_it() {
    let text = "[[port]]\nport = \"left=packet:a?ring=1m\"\n[[port]]\nname = \"right\"\nport = \"packet:b\"\n\
                [[port]]\nport = \"both=tap:c\"\nname = \"both\"\n\
                [[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"right\"\n";
    let ports = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports;
    let expected = ["left=packet:a?ring=1m", "right=packet:b", "both=tap:c"]
        .map(|port| port.parse().expect("a port string"));
    assert_eq!(ports.iter().map(|port| port.port.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(ports[1].static_entries.len(), 1);
}

#[test]
fn every_setting_of_a_port_is_read_by_its_name() {
    for setting in PortSettings::SETTINGS {
        let (written, value): (&str, SettingValue) = match setting.values {
            SettingType::Number { unit: "ns", .. } => ("\"5us\"", 5_000.into()),
            SettingType::Number { .. } => ("70", 70.into()),
            SettingType::Switch if setting.name == "isolated" => ("true", true.into()),
            SettingType::Switch => ("false", false.into()),
            SettingType::Word(words) => (words[1], words[1].into()),
            SettingType::Text(_) => ("\"auto\"", "auto".into()),
        };
        let written = match setting.values {
            SettingType::Word(_) => format!("\"{written}\""),
            _ => written.to_owned(),
        };
        let name = setting.name.replace('_', "-");
        let text = format!("[[port]]\nport = \"tap:a\"\n{name} = {written}\n");
        let port = Config::parse(&text, "bridge.toml").expect("it is right").bridge.ports.remove(0);
        let mut expected = PortSettings::new("tap:a".parse().expect("a port string"));
        setting.set(&mut expected, &value).expect("it is allowed");
        assert_eq!((setting.get(&port), port), (value, expected), "{name}");
    }
}

#[test]
fn the_knobs_of_aggregation_are_read() {
    let text = "[[port]]\nport = \"tap:a\"\nfeatures = { lro = true, tx-tcp-mangleid-segmentation = true }\nforce-lro = true\n\
                lro-max-aggr = 43\nlro-acks = true\ngro-past-push = true\nstorage = \"linear\"\n";
    let port = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports.remove(0);
    assert!(
        port.features.contains(Feature::TxTcpMangleidSegmentation)
            && port.features.contains(Feature::LargeReceiveOffload)
            && port.force_lro
    );
    assert_eq!((port.limits.lro_max_aggr, port.storage), (43, Storage::Linear));
    assert!(port.lro_acks && port.gro_past_push && !port.gro_udp_no_checksum);
}

#[test]
fn static_entries_are_given_to_their_ports() {
    let text = "[[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"tap:a\"\nvlan = 10\n\
                [[port]]\nport = \"tap:a\"\n[[port]]\nport = \"tap:b\"\n\
                [[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"tap:b\"\n";
    let ports = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports;
    let entries = ports
        .iter()
        .map(|port| port.static_entries.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(entries.collect::<Vec<_>>(), [["52:54:00:12:34:56 vlan 10"], ["52:54:00:12:34:56"]]);
}

#[test]
fn settings_of_ports_have_the_names_of_commands_and_hyphens_do_as_well() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bridge/bridge.toml");
    let example = std::fs::read_to_string(path).expect("the example is there");
    let (head, rest) = example.split_once("\n[[port]]").expect("ports");
    let hyphens = rest.lines().map(|line| match line.split_once(" = ") {
        Some((name, value)) if !line.starts_with('#') => {
            format!("{} = {value}\n", name.replace('_', "-"))
        }
        _ => format!("{line}\n"),
    });
    let text = format!("{head}\n[[port]]{}", hyphens.collect::<String>());
    assert!(example.contains("\nrps_flow_cnt = ") && text.contains("\nrps-flow-cnt = "));
    let read = |text: &str| Config::parse(text, "bridge.toml").expect("it is right").bridge;
    assert_eq!(read(&text), read(&example));
}

#[test]
fn vlans_of_ports_are_read() {
    let text = "[bridge]\nvlan-filtering = true\nvlan-protocol = \"802.1ad\"\nmulticast-snooping = true\n[[port]]\nport = \"tap:a\"\nvlans = [\"10 pvid untagged\", \"20-30\"]\n\
                [[port]]\nport = \"tap:b\"\n[[port]]\nport = \"tap:c\"\nvlans = []\n";
    let bridge = Config::parse(text, "bridge.toml").expect("it is right").bridge;
    assert!(bridge.vlan_filtering && bridge.multicast_snooping);
    assert_eq!(bridge.vlan_protocol, VlanProtocol::Dot1Ad);
    let vlans = bridge
        .ports
        .iter()
        .map(|port| port.vlans.ranges().iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(
        vlans.collect::<Vec<_>>(),
        [vec!["10 pvid untagged", "20-30"], vec!["1 pvid untagged"], vec![]]
    );
}

#[test]
fn steering_is_for_all_queues_or_for_each() {
    let text = "[steering]\nhash-symmetric = true\nhash = \"toeplitz\"\ndev-weight = 8\n\
                [[port]]\nport = \"tap:a\"\nrps-cpus = [\"1\", \"0\"]\nrps-flow-cnt = 1000\nin-place-below = 5000\n";
    let bridge = Config::parse(text, "bridge.toml").expect("it is right").bridge;
    assert!(bridge.steering.hash.symmetric && bridge.steering.weight == 8);
    let PortSteering { rps_cpus, rps_flow_cnt, in_place } = &bridge.ports[0].steering;
    assert_eq!([0, 1, 2].map(|queue| rps_cpus.queue(queue).list().to_string()), ["0", "", ""]);
    assert_eq!((*rps_flow_cnt.queue(3), *in_place), (1024, Some(InPlace::Below(5000))));
    for (line, expected) in [
        ("", None),
        ("in-place-below = 0\n", Some(InPlace::NEVER)),
        ("in-place-below = \"auto\"\n", Some(InPlace::Automatic)),
    ] {
        let text = format!("[[port]]\nport = \"tap:a\"\n{line}");
        assert_eq!(
            Config::parse(&text, "bridge.toml").expect("it is right").bridge.ports[0]
                .steering
                .in_place,
            expected
        );
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("absent.toml");
    assert!(
        Config::read(&path)
            .expect_err("absent")
            .to_string()
            .contains("absent.toml: cannot be read")
    );
    std::fs::write(&path, vec![b'#'; MAX_FILE as usize + 1]).expect("writes");
    assert!(Config::read(&path).expect_err("long").to_string().contains("longer than 1 MiB"));
    std::fs::write(&path, [0xff, 0xfe]).expect("writes");
    assert!(Config::read(&path).is_err());
}
