//! Tests of named ports: which state of a port survives a change of its port string.

use superpacket_bridge::fdb::{FdbFilter, Station};
use superpacket_bridge::report::PortReport;
use superpacket_bridge::settings::{
    BridgeSettings, NamedSettings, PortChange, PortSettings, TooBig,
};
use superpacket_bridge::{Bridge, BridgeError};
use superpacket_port::PortSpec;

mod support;

use support::{Host, ports, wait};

/// The other end of a link, with one station.
struct StationHost {
    host: Host,
    address: u8,
}

impl StationHost {
    /// Returns the other end of `memory:LINK`, a station whose address ends in this byte.
    fn new(link: &str, address: u8) -> Self {
        StationHost { host: Host::open(&format!("memory:{link}")), address }
    }

    fn send(&mut self, to: u8) {
        let frame =
            [&[2, 0, 0, 0, 0, to], &[2, 0, 0, 0, 0, self.address], &[0x88, 0xb5][..], &[7; 46]]
                .concat();
        self.host.send(&[frame]);
    }

    /// Returns the number of frames received since the last call.
    fn came(&mut self) -> usize {
        self.host.input.poll(&mut Vec::new(), 64).expect("up")
    }
}

fn spec(text: &str) -> PortSpec {
    text.parse().expect("a port string")
}

fn settings(specs: &[&str]) -> BridgeSettings {
    BridgeSettings { ports: ports(specs), threads: 1, ..BridgeSettings::default() }
}

fn names(bridge: &Bridge) -> Vec<String> {
    bridge.ports().into_iter().map(|port| port.port).collect()
}

fn report(bridge: &Bridge, name: &str) -> PortReport {
    bridge.ports().into_iter().find(|port| port.port == name).expect("is there")
}

/// Returns the addresses that the table has for a port.
fn addresses(bridge: &Bridge, name: &str) -> Vec<String> {
    let filter = FdbFilter { port: Some(name.into()), ..FdbFilter::default() };
    bridge
        .fdb(&filter, None, 99)
        .expect("answers")
        .entries
        .into_iter()
        .map(|entry| entry.mac)
        .collect()
}

#[test]
fn a_port_is_called_by_its_name_in_whatever_is_asked_of_it() {
    let bridge = Bridge::start(settings(&["left=memory:called-a?slots=64", "memory:called-b"]))
        .expect("memory needs nothing");
    assert_eq!(names(&bridge), ["left", "memory:called-b"]);
    let strings = bridge.ports().into_iter().map(|port| port.string).collect::<Vec<_>>();
    assert_eq!(strings, ["memory:called-a?slots=64", "memory:called-b"]);
    assert_eq!(bridge.features()[0].port, "left");
    assert_eq!(bridge.stats()[0].port, "left");
    assert_eq!(bridge.vlans().ports[0].ifname, "left");
    assert_eq!(bridge.rps()[0].port, "left");
    assert_eq!(
        bridge.set_port("left", &PortChange::setting("too_big", "icmp")).expect("is there").port,
        "left"
    );
    let error = bridge
        .set_port("memory:called-a?slots=64", &PortChange::setting("too_big", "icmp"))
        .expect_err("it has a name")
        .to_string();
    assert!(error.ends_with("there are left, memory:called-b"), "{error}");
    for twice in ["left=memory:called-c", "memory:called-b"] {
        let error = bridge.add_port(PortSettings::new(spec(twice))).expect_err("the name is taken");
        assert!(
            matches!(&error, BridgeError::DuplicatePort { port } if port == spec(twice).name()),
            "{error}"
        );
    }
    let error = Bridge::start(settings(&["a=memory:called-d", "a=memory:called-e"]))
        .expect_err("two of one name");
    assert!(error.to_string().contains("\"a\" is named twice"), "{error}");
    bridge.remove_port("left").expect("is there");
    bridge
        .add_port(PortSettings::new(spec("left=memory:called-c")))
        .expect("the name is free again");
    assert_eq!(names(&bridge), ["left", "memory:called-b"]);
}

#[test]
fn a_port_with_other_options_is_the_same_port() {
    let (mut a, mut b) = (StationHost::new("options-a", 1), StationHost::new("options-b", 2));
    let mut wanted = settings(&["left=memory:options-a", "right=memory:options-b"]);
    let fixed = Station { vlan: 0, address: [2, 0, 0, 0, 0, 9] };
    wanted.ports[0].static_entries.insert(fixed);
    wanted.ports[0].set("address_limit", 7).expect("a limit");
    let bridge = Bridge::start(wanted.clone()).expect("memory needs nothing");
    a.send(2);
    b.send(1);
    let there = ["02:00:00:00:00:01", "02:00:00:00:00:09"];
    wait("both to be known", || {
        addresses(&bridge, "left") == there && bridge.stats()[1].rx_packets == 1
    });
    wanted.ports[0].port = spec("left=memory:options-a?slots=64");
    bridge.apply(wanted.clone()).expect("it can be opened so");
    let port = report(&bridge, "left");
    assert_eq!(
        (port.string.as_str(), port.state.as_str(), port.reopened),
        ("memory:options-a?slots=64", "up", 1)
    );
    assert_eq!(port.settings["address_limit"], 7.into());
    assert_eq!(addresses(&bridge, "left"), there, "what was learned, and what is static");
    assert_eq!(bridge.stats()[0].rx_packets, 1, "what it counted");
    assert_eq!(
        (names(&bridge), report(&bridge, "right").reopened),
        (vec!["left".to_owned(), "right".to_owned()], 0)
    );
    // The change is in force: packets pass, and go to the learned port.
    let _ = (a.came(), b.came());
    b.send(1);
    a.send(2);
    wait("both frames", || {
        bridge.stats().iter().all(|port| port.rx_packets == 2 && port.tx_packets == 2)
    });
    assert_eq!((a.came(), b.came()), (1, 1));
    // Another device: the stations that were behind the port may be elsewhere.
    let mut c = StationHost::new("options-c", 3);
    wanted.ports[0].port = spec("left=memory:options-c");
    bridge.apply(wanted).expect("it can be opened so");
    assert_eq!(addresses(&bridge, "left"), ["02:00:00:00:00:09"]);
    c.send(2);
    wait("the frame", || b.came() == 1);
    assert_eq!((bridge.stats()[0].rx_packets, report(&bridge, "left").reopened), (3, 2));
}

#[test]
fn what_cannot_be_opened_so_is_open_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (mut a, recorded) = (StationHost::new("refused-a", 1), path("out.pcap"));
    let record = format!("pcap:{recorded}?mode=record");
    let mut wanted = settings(&["in=memory:refused-a?slots=64", &format!("out={record}")]);
    let bridge = Bridge::start(wanted.clone()).expect("a folder of ours");
    a.send(2);
    wait("the frame", || bridge.stats()[1].tx_packets == 1);
    // A mistake in options closes no port, and prevents all other changes too.
    wanted.ports[0].port = spec("in=memory:refused-a?slots=none");
    wanted.ports[1].too_big = TooBig::Icmp;
    let error = bridge.apply(wanted.clone()).expect_err("no number").to_string();
    assert!(
        error.starts_with("port \"in=memory:refused-a?slots=none\": option \"slots=none\" takes"),
        "{error}"
    );
    assert_eq!(
        (report(&bridge, "in").reopened, report(&bridge, "out").settings["too_big"].clone()),
        (0, "drop".into())
    );
    // The same if another device cannot be opened, because it is opened first.
    wanted.ports[0].port = spec("in=pcap:/nowhere/at/all.pcap");
    let error = bridge.apply(wanted.clone()).expect_err("there is no such file").to_string();
    assert!(error.contains("/nowhere/at/all.pcap"), "{error}");
    assert_eq!(
        (report(&bridge, "in").reopened, report(&bridge, "out").settings["too_big"].clone()),
        (0, "drop".into())
    );
    // The same file cannot be open twice, so the error occurs only after it is closed.
    wanted.ports[0].port = spec("in=memory:refused-a");
    wanted.ports[1].port =
        spec(&format!("out=pcap:{recorded}?record={}", path("absent/copy.pcap")));
    let error = bridge.apply(wanted).expect_err("there is no such folder").to_string();
    let copied = format!(
        "out: it cannot be opened as pcap:{recorded}?record={}: ",
        path("absent/copy.pcap")
    );
    assert!(
        error.starts_with(&copied)
            && error.ends_with(&format!("; it is open as before, as {record}")),
        "{error}"
    );
    let out = report(&bridge, "out");
    assert_eq!(
        (out.string, out.state, out.error, out.reopened, out.settings["too_big"].clone()),
        (record, "up".into(), None, 1, "icmp".into())
    );
    assert_eq!(
        report(&bridge, "in").string,
        "memory:refused-a",
        "one port does not keep the others from what is asked of them"
    );
    a.send(2);
    wait("the frame", || bridge.stats()[1].tx_packets == 2);
}

#[test]
fn names_may_change_places() {
    let (mut a, mut b) = (StationHost::new("places-a", 1), StationHost::new("places-b", 2));
    let bridge = Bridge::start(settings(&["left=memory:places-a", "right=memory:places-b"]))
        .expect("memory needs nothing");
    a.send(0xff);
    wait("the frame", || b.came() == 1);
    bridge
        .apply(settings(&["left=memory:places-b", "right=memory:places-a"]))
        .expect("both can be opened so");
    b.send(0xff);
    wait("the frame", || a.came() == 1);
    let counted = bridge
        .stats()
        .into_iter()
        .map(|port| (port.port, port.rx_packets, port.tx_packets))
        .collect::<Vec<_>>();
    assert_eq!(counted, [("left".to_owned(), 2, 0), ("right".to_owned(), 0, 2)]);
}
