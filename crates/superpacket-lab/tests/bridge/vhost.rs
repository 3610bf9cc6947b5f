//! Guests behind vhost-user ports: pairs with and without offloads, every byte compared.
//!
//! A guest's network stack is that of a host with a TAP device, whose frames a thread carries to
//! the rings of a virtio device and back, with their virtio headers as they are.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket::virtio::Format;
use superpacket_bridge::report::PortStats;
use superpacket_front_end::{Descriptor, Guest, GuestSettings, descriptor_flag, feature};
use superpacket_lab::{
    Direction, Host, LabError, Link, Route, Station, TcpBulk, Until, available_or_skip,
};
use superpacket_port::features::Feature;
use superpacket_port::system::{TunKind, TunQueue, open_tun};
use tempfile::TempDir;

use crate::joined::{Joined, nothing_was_refused, port, start};

/// What a guest's network stack leaves to its device, and accepts from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offloads {
    All,
    None,
}

/// Length of the longest frame with its header.
const LONGEST: usize = 68 * 1024;

/// A guest. Dropping it is as if it was killed: whatever is in its rings stays there.
struct Machine {
    station: Station,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts a guest behind the port at `path`, with the address that `number` has.
    fn start(path: &Path, number: u8, offloads: Offloads) -> Result<Self, LabError> {
        let host = Host::new(if number == 1 { "A" } else { "B" })?;
        let system = |action: &'static str| move |error| LabError::system(action, error);
        let queue = host.run(|| {
            let file = open_tun().map_err(system("opening /dev/net/tun"))?;
            TunQueue::attach(file, "eth0", TunKind::Tap, false).map_err(system("a TAP device"))
        })?;
        queue.set_header(Format::Buffers, None).map_err(system("a header"))?;
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let has_all = offloads == Offloads::All;
        queue.set_offloads(if has_all { tcp } else { 0 }).map_err(system("offloads"))?;
        let own = [feature::VERSION_1, feature::MRG_RXBUF, feature::EVENT_IDX];
        let offloaded = [
            feature::CSUM,
            feature::GUEST_CSUM,
            feature::GUEST_TSO4,
            feature::GUEST_TSO6,
            feature::GUEST_ECN,
            feature::HOST_TSO4,
            feature::HOST_TSO6,
            feature::HOST_ECN,
        ];
        let features = own
            .iter()
            .chain(offloaded.iter().filter(|_| has_all))
            .fold(0, |all, feature| all | 1 << feature);
        let settings = GuestSettings { features, ..GuestSettings::default() };
        let guest = Guest::connect(path, settings).map_err(system("connecting a guest"))?;
        let link = host.link("eth0");
        link.up()?;
        let station = Station::new(link, number)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || carry(&queue, guest, &stopped));
        Ok(Machine { station, stop, thread: Some(thread) })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries frames between the TAP device and the rings until `stop` is set.
fn carry(queue: &TunQueue, mut guest: Guest, stop: &AtomicBool) {
    let mut frame = vec![0; LONGEST];
    let header = guest.header_length();
    let mut waiting = None;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let length = match waiting.take() {
                Some(length) => length,
                None => match rustix::io::read(queue, &mut frame[..]) {
                    Ok(length) => length,
                    Err(_) => break,
                },
            };
            if !guest.send(0, &frame[..header], &frame[header..length]) {
                waiting = Some(length);
                break;
            }
        }
        while let Some(received) = guest.receive(0) {
            let _ = rustix::io::write(queue, &[received.header, received.bytes].concat());
        }
        guest.queues[0].ring.set_used_event(&guest.memory, guest.queues[0].ring.next_used);
        guest.calls(0);
        // A frame that waits is tried again soon.
        let timeout =
            Timespec { tv_sec: 0, tv_nsec: if waiting.is_some() { 50_000 } else { 20_000_000 } };
        let call = guest.queues[0].call.as_fd();
        let mut descriptors = vec![PollFd::from_borrowed_fd(call, PollFlags::IN)];
        if waiting.is_none() {
            descriptors.push(PollFd::new(queue, PollFlags::IN));
        }
        let _ = poll(&mut descriptors, Some(&timeout));
    }
}

/// Two guests joined by a bridge. Fields are dropped in this order: guests before the bridge.
struct Guests {
    machines: Vec<Machine>,
    joined: Joined,
    folder: TempDir,
}

/// Joins two guests; `None` if the machine forbids it.
fn by_vhost(options: &str, offloads: [Offloads; 2]) -> Result<Option<Guests>, LabError> {
    let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(None) };
    let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let names = [&paths[0], &paths[1]].map(|path| format!("vhost:{}{options}", path.display()));
    let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
    let machines = vec![
        Machine::start(&paths[0], 1, offloads[0])?,
        Machine::start(&paths[1], 2, offloads[1])?,
    ];
    let stations = [machines[0].station.clone(), machines[1].station.clone()];
    let joined = Joined::new(middle, bridge, names, stations);
    let guests = Guests { machines, joined, folder };
    guests.wait_until_up();
    for (side, offloads) in offloads.into_iter().enumerate() {
        guests.wait_for_offloads(side, offloads);
    }
    Ok(Some(guests))
}

impl Guests {
    fn wait_until_up(&self) {
        self.joined.wait("both links are up", |joined| {
            joined.bridge.ports().iter().all(|port| port.state == "up")
        });
    }

    /// Waits until the bridge knows what the guest on this side accepts.
    fn wait_for_offloads(&self, side: usize, offloads: Offloads) {
        let tso = Feature::TcpSegmentationOffload.name();
        self.joined.wait("the bridge knows the guest's features", |joined| {
            let features = joined.bridge.features();
            let of_port = features.iter().find(|features| features.port == joined.names[side]);
            let features = &of_port.expect("the port is there").features;
            let report = features.iter().find(|report| report.feature == tso);
            report.expect("all are there").active == (offloads == Offloads::All)
        });
    }

    fn stats(&self) -> [PortStats; 2] {
        [self.joined.stats(0), self.joined.stats(1)]
    }

    /// Replaces the guest B.
    fn restart(&mut self, offloads: Offloads) -> Result<(), LabError> {
        self.machines.truncate(1);
        self.joined.wait("the link is down", |joined| joined.bridge.ports()[1].state == "down");
        let machine = Machine::start(&self.folder.path().join("b"), 2, offloads)?;
        self.joined.b = machine.station.clone();
        self.machines.push(machine);
        self.wait_until_up();
        self.wait_for_offloads(1, offloads);
        Ok(())
    }
}

#[test]
fn super_packets_pass_whole_between_guests_that_take_them() -> Result<(), LabError> {
    let Some(guests) = by_vhost("", [Offloads::All; 2])? else { return Ok(()) };
    guests.joined.carries_both_ways(16 << 20)?;
    let stats = guests.stats();
    nothing_was_refused(&stats);
    assert!(stats.iter().all(|stats| stats.segmented == 0 && stats.tx_super_packets > 0));
    assert!(stats.iter().all(|stats| stats.checksummed == 0), "{stats:?}");
    Ok(())
}

#[test]
fn a_guest_without_offloads_gets_segments() -> Result<(), LabError> {
    let Some(guests) = by_vhost("?queues=2", [Offloads::All, Offloads::None])? else {
        return Ok(());
    };
    guests.joined.carries_both_ways(8 << 20)?;
    let stats = guests.stats();
    nothing_was_refused(&stats);
    assert_eq!(stats[1].tx_super_packets, 0);
    assert!(stats[1].segmented > 0 && stats[0].rx_super_packets > 0, "{stats:?}");
    Ok(())
}

/// A guest that is started again with other features while the other stays: the port is not
/// reopened, nor is any other.
#[test]
fn the_port_follows_the_features_of_the_guest_that_is_there() -> Result<(), LabError> {
    let Some(mut guests) = by_vhost("", [Offloads::All; 2])? else { return Ok(()) };
    guests.joined.carries(1, 1 << 20)?;
    for offloads in [Offloads::None, Offloads::All, Offloads::None] {
        guests.restart(offloads)?;
        let before = guests.stats();
        guests.joined.carries_both_ways(4 << 20)?;
        let after = guests.stats();
        let super_packets = after[1].tx_super_packets - before[1].tx_super_packets;
        let segmented = after[1].segmented - before[1].segmented;
        assert_eq!(super_packets != 0, offloads == Offloads::All, "{offloads:?} {after:?}");
        assert_eq!(segmented != 0, offloads == Offloads::None, "{offloads:?} {after:?}");
    }
    assert!(guests.joined.bridge.ports().iter().all(|port| port.reopened == 0));
    nothing_was_refused(&guests.stats());
    Ok(())
}

/// A guest and a veth pair on one bridge; the guest is killed in the middle of traffic.
#[test]
fn a_guest_that_is_killed_in_mid_traffic_leaves_nothing_stuck() -> Result<(), LabError> {
    let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(()) };
    let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
    let path = folder.path().join("b");
    let (link, _) = Link::veth(&Host::new("A")?, "eth0", &middle, "port-a")?;
    let names = ["packet:port-a".to_owned(), format!("vhost:{}", path.display())];
    let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
    let machine = Machine::start(&path, 2, Offloads::All)?;
    let stations = [Station::new(link, 1)?, machine.station.clone()];
    let joined = Joined::new(middle, bridge, names, stations);
    let mut guests = Guests { machines: vec![machine], joined, folder };
    guests.wait_until_up();
    guests.joined.carries_both_ways(8 << 20)?;
    for _ in 0..3 {
        let until = Until::Bytes(1 << 40);
        let interrupted = std::thread::scope(|scope| {
            let bulk = TcpBulk { direction: Direction::Both, until, ..TcpBulk::default() };
            let route = Route::ipv4(&guests.joined.a, &guests.joined.b);
            let running = scope.spawn(move || bulk.run(&route).is_err());
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(guests.machines.pop());
            running.join().expect("no panic")
        });
        assert!(interrupted, "the guest's host is gone with it");
        guests.joined.wait("the link is down", |joined| joined.bridge.ports()[1].state == "down");
        let machine = Machine::start(&guests.folder.path().join("b"), 2, Offloads::All)?;
        guests.joined.b = machine.station.clone();
        guests.machines.push(machine);
        guests.wait_until_up();
        guests.joined.carries_both_ways(2 << 20)?;
    }
    Ok(())
}

/// A guest that breaks the rules of its ring is cut off, while two others exchange data.
#[test]
fn a_cheating_guest_is_reset_and_the_others_continue() -> Result<(), LabError> {
    let Some(guests) = by_vhost("", [Offloads::All; 2])? else { return Ok(()) };
    let path = guests.folder.path().join("c");
    let name = format!("vhost:{}", path.display());
    let mut settings = guests.joined.bridge.settings();
    settings.ports.push(port(&name));
    let apply = || Ok::<_, LabError>(guests.joined.bridge.apply(settings));
    guests.joined.middle.run(apply)?.expect("one more port");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cheats = scope.spawn(|| {
            let mut cheats = 0;
            while !done.load(Ordering::Relaxed) {
                let mut guest = Guest::connect(&path, GuestSettings::default()).expect("accepted");
                let Guest { queues, memory, .. } = &mut guest;
                let link = Descriptor { flags: descriptor_flag::NEXT, ..Descriptor::default() };
                queues[1].ring.set(memory, 0, link);
                queues[1].ring.offer_head(memory, 0);
                guest.kick(1);
                assert!(guest.front_end.is_closed());
                cheats += 1;
            }
            cheats
        });
        let carried = guests.joined.carries_both_ways(16 << 20);
        done.store(true, Ordering::Relaxed);
        let cheats = cheats.join().expect("no panic");
        carried?;
        let stats = guests.joined.bridge.stats();
        let cheat = stats.iter().find(|stats| stats.port == name).expect("the port is there");
        assert_eq!(cheat.drops["rx_errors"], cheats);
        assert!(cheats > 0);
        Ok::<_, LabError>(())
    })?;
    nothing_was_refused(&guests.stats());
    Ok(())
}
