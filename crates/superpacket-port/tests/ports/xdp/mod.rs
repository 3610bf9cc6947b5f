//! Tests of AF_XDP ports on veth links in separate namespaces, with raw packet sockets at the other
//! ends.

mod forward;
mod frames;
mod life;
mod offloads;
mod queues;
mod rings;

use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket_port::xdp::XdpPort;
use superpacket_port::{
    Buffer, Outgoing, POLL_LIMIT, Port, PortError, Receive, StopReason, Transmit, TxBatch,
};

use crate::cable::merge;
use crate::support::{in_namespace, ip, quiet, skip};

/// Time after which a test stops waiting, and fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a test in a namespace with the links `a0`-`a1` and `b0`-`b1`, where XDP programs may be
/// loaded.
fn with_links(mtu: u32, test: impl FnOnce()) {
    in_namespace(|| {
        quiet();
        for (one, other) in [("a0", "a1"), ("b0", "b1")] {
            link(one, other, mtu, "");
        }
        match XdpPort::open(&"xdp:a1?mode=generic".parse().expect("a port string")) {
            Err(PortError::System { action, source, .. })
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                skip(&format!("XDP programs are forbidden here: {action}: {source}"));
            }
            Err(error) => panic!("{error}"),
            Ok(probe) => {
                drop(probe);
                test();
            }
        }
    });
}

fn link(one: &str, other: &str, mtu: u32, queues: &str) {
    ip(&format!(
        "link add {one} mtu {mtu} {queues} type veth peer name {other} mtu {mtu} {queues}"
    ));
    ip(&format!("link set {one} up"));
    ip(&format!("link set {other} up"));
}

fn open(spec: &str) -> XdpPort {
    XdpPort::open(&spec.parse().expect("a port string")).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(spec: &str) -> String {
    XdpPort::open(&spec.parse().expect("a port string")).expect_err(spec).to_string()
}

/// Returns frame number `number`, which is unique. Its experimental ethertype makes network stacks
/// ignore it.
fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> =
        (0..length).map(|index| (index * 7 + number * 13 + index * number / 251) as u8).collect();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 1, (number >> 8) as u8, number as u8]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Returns a frame with an IPv4 UDP packet without checksum, from port `port`.
fn datagram(port: u8) -> Vec<u8> {
    let mut frame = frame(1, 14 + 48);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
    ]);
    let checksum = superpacket::checksum::ipv4_header(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..42].copy_from_slice(&[0x80, port, 0, 9, 0, 28, 0, 0]);
    frame
}

/// Returns a port's only receiver.
fn receiver(port: &mut XdpPort) -> Box<dyn Receive> {
    let mut receivers = port.receivers();
    assert_eq!(receivers.len(), 1);
    assert!(port.receivers().is_empty(), "they are handed out once");
    receivers.remove(0)
}

/// Sends frames that lie in no port's memory.
fn send(transmitter: &mut dyn Transmit, frames: &[Vec<u8>]) {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    for frame in frames {
        batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet);
    }
    send_all(transmitter, &outgoing, &batch);
}

fn send_all(transmitter: &mut dyn Transmit, outgoing: &Outgoing, batch: &TxBatch) {
    let (mut from, start) = (0, Instant::now());
    while from < batch.frames().len() {
        let progress = transmitter.transmit(outgoing, batch, from);
        from += progress.sent;
        match progress.stopped {
            None | Some(StopReason::Full) => assert!(start.elapsed() < PATIENCE, "stuck at {from}"),
            Some(stop) => panic!("frame {from}: {stop:?}"),
        }
    }
}

/// Passes received packets on to a port, unchanged.
struct Passage {
    aggregator: Aggregator<Buffer>,
    outgoing: Outgoing,
    batch: TxBatch,
}

impl Passage {
    fn new() -> Self {
        let policy = Policy::gro().with_partial_checksums().with_max_packets(1);
        Passage {
            aggregator: Aggregator::new(policy, HashKey::new(1)),
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
        }
    }

    fn pass(&mut self, packets: &mut Vec<RxPacket<Buffer>>, to: &mut dyn Transmit) {
        let Passage { aggregator, outgoing, batch } = self;
        merge(aggregator, packets, outgoing, batch, 1024);
        send_all(to, outgoing, batch);
        outgoing.clear();
        batch.clear();
    }
}

/// Returns whether an XDP program is attached to the interface.
fn has_program(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["-d", "link", "show", "dev", interface])
        .output()
        .expect("iproute2 is installed");
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

/// Polls until the port returns an error, and returns that.
fn until_error(receiver: &mut dyn Receive) -> PortError {
    let (start, mut packets) = (Instant::now(), Vec::new());
    loop {
        if let Err(error) = receiver.poll(&mut packets, POLL_LIMIT) {
            return error;
        }
        receiver.give_back();
        assert!(start.elapsed() < PATIENCE, "no error came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `test` on a thread without some capabilities, which are per thread.
fn without<T: Send>(removed: CapabilitySet, test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut own = capabilities(None).expect("asked");
            own.effective.remove(removed);
            set_capabilities(None, own).expect("fewer are always granted");
            test()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
