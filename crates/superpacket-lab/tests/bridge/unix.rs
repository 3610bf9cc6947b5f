//! Guests behind UNIX sockets: each form of frames, with and without offloads, every byte compared.

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use superpacket::virtio::Format;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::PortChange;
use superpacket_lab::{
    GuestForm, GuestSocket, Host, LabError, SocketGuest, Station, TcpTransactions,
    available_or_skip,
};
use tempfile::TempDir;

use crate::joined::{Joined, nothing_was_refused, port, start};

/// A guest, and the options of its port.
#[derive(Clone, Copy, Debug)]
struct Cable {
    form: GuestForm,
    options: &'static str,
}

/// A guest without offloads.
const PLAIN: Cable = Cable { form: GuestForm::PLAIN, options: "?" };
/// A guest with offloads, and a virtio header of 10 bytes.
const HEADER_10: Cable =
    Cable { form: GuestForm::with_header(Format::Plain), options: "?header=10" };
/// A guest with offloads, and a virtio header of 12 bytes.
const HEADER_12: Cable =
    Cable { form: GuestForm::with_header(Format::Buffers), options: "?header=12" };
/// libkrun with offloads, before it completed checksums.
const STRIPPED: Cable = Cable { form: GuestForm::STRIPPED, options: "?" };
/// libkrun with offloads.
const COMPLETED: Cable =
    Cable { form: GuestForm { completed: true, ..GuestForm::STRIPPED }, options: "?" };
/// libkrun with offloads in both directions.
const STRIPPED_BOTH: Cable = Cable { form: GuestForm::STRIPPED, options: "?offload=on" };

/// Two guests joined by a bridge. Fields are dropped in this order: guests before the bridge.
struct Guests {
    guests: Vec<SocketGuest>,
    joined: Joined,
    folder: TempDir,
}

/// Connects a guest's socket to the port at `path`.
fn connect(path: &Path, options: &str) -> std::io::Result<GuestSocket> {
    if !options.contains("type=datagram") {
        return UnixStream::connect(path).map(GuestSocket::Stream);
    }
    let own = path.with_extension("guest");
    let _ = std::fs::remove_file(&own);
    let socket = UnixDatagram::bind(own)?;
    socket.connect(path)?;
    socket.send(b"VFKT")?;
    Ok(GuestSocket::Datagram(socket))
}

/// Starts a guest behind the port at `path`.
fn guest(path: &Path, number: u8, cable: Cable, options: &str) -> Result<SocketGuest, LabError> {
    let host = Host::new(if number == 1 { "A" } else { "B" })?;
    let socket =
        connect(path, options).map_err(|error| LabError::system("connecting a guest", error))?;
    SocketGuest::start(&host, number, cable.form, socket)
}

/// Joins two guests; `kind` is added to the options of both ports. `None` if the machine forbids
/// it.
fn by_unix(kind: &str, cables: [Cable; 2]) -> Result<Option<Guests>, LabError> {
    let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(None) };
    let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let name =
        |side: usize| format!("unix:{}{}{kind}", paths[side].display(), cables[side].options);
    let names = [name(0), name(1)];
    let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
    let guests = vec![
        guest(&paths[0], 1, cables[0], &names[0])?,
        guest(&paths[1], 2, cables[1], &names[1])?,
    ];
    let stations = [guests[0].station.clone(), guests[1].station.clone()];
    let joined = Joined::new(middle, bridge, names, stations);
    let guests = Guests { guests, joined, folder };
    guests.wait_until_up();
    Ok(Some(guests))
}

impl Guests {
    fn wait_until_up(&self) {
        self.joined.wait("both links are up", |joined| {
            joined.bridge.ports().iter().all(|port| port.state == "up")
        });
    }

    fn stats(&self) -> [PortStats; 2] {
        [self.joined.stats(0), self.joined.stats(1)]
    }
}

#[test]
fn guests_with_and_without_offloads_exchange_every_byte_over_streams() -> Result<(), LabError> {
    for other in [HEADER_10, HEADER_12, STRIPPED, COMPLETED, STRIPPED_BOTH, PLAIN] {
        let Some(guests) = by_unix("", [other, PLAIN])? else { return Ok(()) };
        guests.joined.carries_both_ways(8 << 20)?;
        let stats = guests.stats();
        nothing_was_refused(&stats);
        assert_eq!(stats[1].tx_super_packets, 0, "B takes none: {other:?}");
        if other.form.offloads {
            assert!(stats[0].rx_super_packets > 0 && stats[1].segmented > 0, "{other:?} {stats:?}");
        }
        let takes_super_packets =
            other.form.header.is_some() || other.options.contains("offload=on");
        assert_eq!(stats[0].tx_super_packets > 0, takes_super_packets, "{other:?} {stats:?}");
    }
    Ok(())
}

#[test]
fn guests_with_and_without_offloads_exchange_every_byte_over_datagrams() -> Result<(), LabError> {
    for other in [HEADER_10, HEADER_12, STRIPPED, COMPLETED, STRIPPED_BOTH, PLAIN] {
        let Some(guests) = by_unix("&type=datagram", [other, PLAIN])? else { return Ok(()) };
        guests.joined.carries_both_ways(4 << 20)?;
        let stats = guests.stats();
        nothing_was_refused(&stats);
        assert_eq!(stats[1].tx_super_packets, 0, "B takes none: {other:?}");
        assert_eq!(stats[0].rx_super_packets > 0, other.form.offloads, "{other:?} {stats:?}");
    }
    Ok(())
}

#[test]
fn super_packets_pass_whole_between_guests_with_headers() -> Result<(), LabError> {
    let Some(guests) = by_unix("", [HEADER_10, HEADER_12])? else { return Ok(()) };
    guests.joined.carries_both_ways(16 << 20)?;
    let stats = guests.stats();
    nothing_was_refused(&stats);
    assert!(stats.iter().all(|stats| stats.segmented == 0 && stats.tx_super_packets > 0));
    // What was stripped from one guest's packets is given to the other.
    let Some(guests) = by_unix("", [STRIPPED, HEADER_12])? else { return Ok(()) };
    guests.joined.carries_both_ways(16 << 20)?;
    let stats = guests.stats();
    nothing_was_refused(&stats);
    assert!(stats[1].segmented == 0 && stats[1].tx_super_packets > 0, "{stats:?}");
    Ok(())
}

/// vmnet-helper's issue 255: 10.3 Gb/s fell to 2.3 Mb/s where a guest with offloads was on a
/// network that has none, since its super-packets were lost and TCP sent them again piece by piece.
#[test]
fn vmnet_helper_255_a_guest_with_offloads_on_a_network_that_has_none() -> Result<(), LabError> {
    let Some(guests) = by_unix("&type=datagram", [STRIPPED, PLAIN])? else { return Ok(()) };
    guests.joined.carries(1, 1 << 20)?;
    let begin = Instant::now();
    guests.joined.carries(1, 32 << 20)?;
    // 2.3 Mb/s would take two minutes.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let stats = guests.stats();
    nothing_was_refused(&stats);
    let average = stats[0].rx_bytes / stats[0].rx_packets.max(1);
    assert!(average > 3000, "A still sends super-packets, {average} bytes long: {stats:?}");
    // The other direction, and both at once.
    guests.joined.carries_both_ways(4 << 20)?;
    nothing_was_refused(&guests.stats());
    Ok(())
}

/// nerdbox's issue 78: the host's bridge dropped a guest's super-packets, since they had lost their
/// virtio header, and with it the segment size; their checksums are partial.
#[test]
fn nerdbox_78_super_packets_without_a_segment_size_reach_a_veth() -> Result<(), LabError> {
    for cable in [STRIPPED, COMPLETED] {
        let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(()) };
        let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
        let path = folder.path().join("a");
        let (link, side) =
            superpacket_lab::Link::veth(&Host::new("B")?, "eth0", &middle, "port-b")?;
        // The network behind the veth segments nothing.
        for feature in ["tcp-segmentation-offload", "generic-segmentation-offload"] {
            side.set_feature(feature, false)?;
        }
        let names = [format!("unix:{}", path.display()), "packet:port-b?tso=device".to_owned()];
        let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
        let a = guest(&path, 1, cable, "")?;
        let joined =
            Joined::new(middle, bridge, names, [a.station.clone(), Station::new(link, 2)?]);
        let guests = Guests { guests: vec![a], joined, folder };
        guests.wait_until_up();
        guests.joined.carries_both_ways(8 << 20)?;
        let stats = guests.stats();
        nothing_was_refused(&stats);
        assert!(stats[0].rx_super_packets > 0 && stats[1].segmented > 0, "{stats:?}");
    }
    Ok(())
}

#[test]
fn requests_are_answered_while_sockets_are_idle() -> Result<(), LabError> {
    for kind in ["", "&type=datagram"] {
        let Some(guests) = by_unix(kind, [HEADER_12, PLAIN])? else { return Ok(()) };
        let time = Duration::from_millis(500);
        let requests = TcpTransactions { connections: 4, time, ..TcpTransactions::default() };
        let report = requests.run(&guests.joined.route())?;
        assert!(report.per_second() > 100.0, "{kind}: {} per second", report.per_second());
    }
    Ok(())
}

/// A guest that is started again while the other sends: the port is not reopened, and the
/// connections of TCP that live in the kernel continue.
#[test]
fn a_guest_that_leaves_and_returns_is_the_same_port() -> Result<(), LabError> {
    for kind in ["", "&type=datagram"] {
        let Some(mut guests) = by_unix(kind, [HEADER_12, PLAIN])? else { return Ok(()) };
        guests.joined.carries(1, 1 << 20)?;
        for _ in 0..2 {
            guests.guests.truncate(1);
            guests
                .joined
                .wait("the link is down", |joined| joined.bridge.ports()[1].state == "down");
            let path = guests.folder.path().join("b");
            let again = guest(&path, 2, PLAIN, &guests.joined.names[1])?;
            guests.joined.b = again.station.clone();
            guests.guests.push(again);
            guests.wait_until_up();
            guests.joined.carries(1, 1 << 20)?;
        }
        assert_eq!(guests.joined.bridge.ports()[1].reopened, 0);
        nothing_was_refused(&guests.stats());
    }
    Ok(())
}

/// An option of the port string changes: the socket is created anew at the same path, and guests
/// connect to it again.
#[test]
fn an_option_changes_while_a_guest_is_connected() -> Result<(), LabError> {
    for kind in ["", "&type=datagram"] {
        let Some(mut guests) = by_unix(kind, [PLAIN, PLAIN])? else { return Ok(()) };
        guests.joined.carries(1, 1 << 20)?;
        let name = guests.joined.names[1].clone();
        let change = PortChange {
            options: [("mtu".to_owned(), Some("1400".to_owned()))].into(),
            ..PortChange::default()
        };
        let changed = guests.joined.bridge.set_port(&name, &change);
        guests.joined.names[1] = changed.expect("the port is opened again").port;
        guests.guests.truncate(1);
        let path = guests.folder.path().join("b");
        let again = guest(&path, 2, PLAIN, &name)?;
        guests.joined.b = again.station.clone();
        guests.guests.push(again);
        guests.wait_until_up();
        assert_eq!(guests.joined.bridge.ports()[1].mtu, 1400);
        guests.joined.b.link.set_mtu(1400)?;
        guests.joined.carries(1, 1 << 20)?;
    }
    Ok(())
}
