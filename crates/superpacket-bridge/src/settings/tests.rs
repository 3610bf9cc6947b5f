//! Tests of the tables of settings.

use super::steering::HashFunction;
use super::*;

fn port() -> PortSettings {
    PortSettings::new("memory:m".parse().expect("a port string"))
}

/// Checks every row of a table: its name is unique, its value reads back what was set, and what it
/// refuses changes nothing.
fn check_table<S: NamedSettings + Clone + PartialEq + std::fmt::Debug>(fresh: &S) {
    let values = [
        SettingValue::Number(128),
        true.into(),
        false.into(),
        "no such word".into(),
        "toeplitz".into(),
    ];
    for setting in S::SETTINGS {
        let name = setting.name;
        let same = S::SETTINGS.iter().filter(|other| other.name == name).count();
        assert_eq!(same, 1, "{name} is unique");
        assert!(!setting.help.is_empty() && !setting.help.ends_with('.'), "{name}");
        let words: &[&str] = match setting.values {
            SettingType::Word(words) => words,
            _ => &[],
        };
        let words = words.iter().map(|word| SettingValue::from(*word));
        let mut changed = 0;
        for value in values.iter().cloned().chain(words) {
            let mut settings = fresh.clone();
            match setting.set(&mut settings, &value) {
                Ok(()) => assert_eq!(setting.get(&settings), value, "{name}"),
                Err(error) => {
                    let shown = value.to_string();
                    assert!(error.starts_with(name) && error.contains(&shown), "{error}");
                    assert_eq!(settings, *fresh, "what is refused changes nothing");
                }
            }
            changed += usize::from(settings != *fresh);
        }
        assert!((1..values.len()).contains(&changed), "{name}: {changed}");
        let mut again = fresh.clone();
        setting.set(&mut again, &setting.get(fresh)).expect("the default is allowed");
        assert_eq!(again, *fresh, "{name}");
    }
}

#[test]
fn every_setting_is_set_by_its_name_and_refuses_other_values() {
    check_table(&port());
    check_table(&SteeringSettings::default());
    let error = port().set("hairpin", true).expect_err("none");
    assert!(
        error.starts_with("\"hairpin\" is not a setting of a port; choose one of gso_max_size, ")
            && error.ends_with("in_place_below"),
        "{error}"
    );
    let error = SteeringSettings::default().set("weight", 1).expect_err("none");
    assert!(error.contains("not a setting of steering; choose one of rps_sock_flow_entries, "));
}

#[test]
fn an_invalid_value_is_refused_with_the_allowed_ones() {
    for (name, wrong, says) in [
        (
            "gso_max_size",
            SettingValue::Number(1),
            "gso_max_size is 0 (what the port takes) or 68 to 524280 bytes, not 1",
        ),
        ("gso_max_size", (1 << 40).into(), "68 to 524280 bytes, not 1099511627776"),
        ("gro_max_size", 0.into(), "gro_max_size is 68 to 524280 bytes, not 0"),
        ("gro_flush_timeout", 1_000_000_001.into(), "is at most 1000000000 ns, not 1000000001"),
        ("gap_timeout", 1_000_000_001.into(), "gap_timeout is at most 1000000000 ns"),
        ("lro_max_aggr", 1.into(), "lro_max_aggr is 0 (no limit) or 2 to 65535 packets, not 1"),
        ("lro_max_desc", 0.into(), "lro_max_desc is 1 to 4096 flows, not 0"),
        (
            "address_limit",
            (1 << 21).into(),
            "address_limit is 0 (half of the table) or 1 to 1048576 addresses, not 2097152",
        ),
        (
            "storm_unknown",
            1_000_000_000_001.into(),
            "storm_unknown is 0 (no limit) or 1 to 1000000000000 packets/s, not 1000000000001",
        ),
        (
            "tx_byte_burst",
            4_294_967_297.into(),
            "tx_byte_burst is 0 (a tenth of a second's) or 1 to 4294967296 bytes, not 4294967297",
        ),
        ("isolated", "yes".into(), "isolated is on or off, not \"yes\""),
        ("delivery", "maybe".into(), "delivery is per-poll or at-once, not \"maybe\""),
        ("too_big", "explode".into(), "too_big is one of drop, icmp, fragment, not \"explode\""),
        (
            "in_place_below",
            "never".into(),
            "is \"auto\", or a number of packets a second (0: always steer), not \"never\"",
        ),
    ] {
        let error = port().set(name, wrong).expect_err(name);
        assert!(error.contains(says), "{error}");
    }
    for (name, wrong, says) in [
        ("rps_sock_flow_entries", SettingValue::Number(1 << 29), "is at most 4194304 flows"),
        ("netdev_max_backlog", 0.into(), "netdev_max_backlog is 1 to 65536 packets, not 0"),
        ("dev_weight", 0.into(), "dev_weight is 1 to 65536 packets, not 0"),
        ("flow_limit_table_len", 1000.into(), "a power of two"),
        ("hash", "crc".into(), "hash is keyed, toeplitz or toeplitz:KEY, not \"crc\""),
        ("hash", "toeplitz:12".into(), "hash: a key has 80 hexadecimal digits, not 2"),
        ("hash_headers", "both".into(), "hash_headers is inner or outer, not \"both\""),
        ("moves", "never".into(), "moves is epochs or at-once, not \"never\""),
    ] {
        let mut settings = SteeringSettings::default();
        let error = settings.set(name, wrong).expect_err(name);
        assert!(error.contains(says), "{error}");
        assert_eq!(settings, SteeringSettings::default());
    }
}

#[test]
fn some_values_are_rounded_or_have_parts() {
    let mut settings = SteeringSettings::default();
    settings.set("rps_sock_flow_entries", 1000).expect("is rounded up");
    assert_eq!(settings.sock_flow_entries, 1024);
    let key = format!("toeplitz:{}", "0123456789abcdef".repeat(5));
    settings.set("hash", key.as_str()).expect("a key");
    assert!(matches!(settings.hash.function, HashFunction::Toeplitz(_)));
    assert_eq!(settings.values()["hash"], key.as_str().into());
    let mut port = port();
    assert_eq!(port.values()["in_place_below"], "default".into());
    for when in [InPlace::NEVER, InPlace::Below(5), InPlace::Automatic] {
        port.set("in_place_below", when).expect("is allowed");
        assert_eq!(port.steering.in_place, Some(when));
    }
}

#[test]
fn values_are_numbers_booleans_and_strings_in_json() {
    let read = |text: &str| serde_json::from_str::<SettingValue>(text);
    assert_eq!(read("7").expect("a number"), SettingValue::Number(7));
    assert_eq!(read("true").expect("a switch"), SettingValue::Switch(true));
    assert_eq!(read("\"icmp\"").expect("a word"), SettingValue::Word("icmp".into()));
    assert!(read("-1").is_err() && read("null").is_err() && read("[1]").is_err());
}

/// Returns the documentation of a table, as Markdown.
fn documented<S: NamedSettings>(fresh: &S) -> String {
    let mut text = "| setting | values | default | meaning |\n|---|---|---|---|\n".to_owned();
    for setting in S::SETTINGS {
        let Setting { name, values, help, .. } = setting;
        text += &format!("| `{name}` | {values} | {} | {help} |\n", setting.get(fresh));
    }
    text
}

#[test]
fn the_documentation_has_every_setting() {
    let read = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        std::fs::read_to_string(path).expect("it is there")
    };
    let page = read("control.md");
    for rows in [documented(&port()), documented(&SteeringSettings::default())] {
        assert!(page.contains(&rows), "docs/control.md has other rows than these:\n{rows}");
    }
    let example = read("bridge/bridge.toml");
    let names = PortSettings::SETTINGS.iter().map(|row| row.name);
    for name in names.chain(SteeringSettings::SETTINGS.iter().map(|row| row.name)) {
        assert!(example.contains(&format!("\n{name} = ")), "docs/bridge/bridge.toml has no {name}");
    }
}
