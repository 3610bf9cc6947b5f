//! The kernel's GRO table, sent frame by frame by host A and captured by host B, with the bridge
//! between them. The engine's own test of the table is `gro_table` of the crate `superpacket`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use superpacket_lab::{CapturedFrame, LabError, RawOptions, RawSocket, SizeLimits};
use superpacket_port::features::Feature;
use superpacket_traffic::frame::{CWR, Checksum, Frame, Ip, Transport};
use superpacket_traffic::gro_table::{self, Burst, Case};

use crate::joined::{Joined, by_veth};
use crate::numbered::Numbered;

/// How long the bridge waits for what is to join what it holds, in nanoseconds: a burst may reach
/// it in two polls, but is one aggregation. Far longer than a sender that is not let on the CPU is
/// kept waiting in the midst of a burst.
const HOLD: u64 = 200_000_000;

/// So many cases are sent at once, to wait for the holding of all of them together; far fewer than
/// a bucket of the flow table overflows of.
const TOGETHER: usize = 16;

/// Until then, whatever arrives must have arrived.
const PATIENCE: Duration = Duration::from_secs(10);

/// The frames of cases, by the number of the case.
const CASES: Numbered = Numbered(*b"gro");

/// The number of a frame that belongs to no case.
const NO_CASE: u16 = u16::MAX;

/// What the ports counted, as far as these frames alone can have caused it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Port A: packets that joined another, and those that were joined.
    merged: [u64; 2],
    /// Port B: super-packets that left whole, and their frames.
    whole: [u64; 2],
    /// Port B: super-packets that were cut before they left, and their segments.
    cut: [u64; 2],
}

/// Host A with something to send from, host B with something to capture by, and the bridge.
struct Table {
    joined: Joined,
    sender: RawSocket,
    receiver: RawSocket,
    expected: Tally,
}

#[test]
fn what_merges_arrives_as_one() -> Result<(), LabError> {
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.hold();
    table.carries(true, virtio_can_say)?;
    let Tally { whole, cut, .. } = table.expected;
    assert!(whole[0] >= 40 && cut[0] >= 100, "both ways out are taken: {:?}", table.expected);
    Ok(())
}

/// Each flow is a case of its own here: the bridge may put packets of a poll in order of their
/// flows, so that the flows need not arrive in the order in which they came.
#[test]
fn as_many_flows_as_a_poll_has_all_merge() -> Result<(), LabError> {
    const FLOWS: usize = 512;
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.hold();
    table.obeyed()?;
    let before = table.drops();
    for (path, frames) in gro_table::capacity(FLOWS as u16) {
        let (first, second) = frames.split_at(FLOWS);
        let case = |(number, (first, second)): (u16, (&Frame, &Frame))| {
            let burst = Burst { frames: vec![first.clone(), second.clone()], arrives: vec![400] };
            addressed(Case { name: format!("{FLOWS} flows, {path}"), bursts: vec![burst] }, number)
        };
        let cases: Vec<_> = (0..).zip(first.iter().zip(second)).map(case).collect();
        let bursts: Vec<_> =
            (0..).zip(&cases).map(|(number, case)| (number, case, &case.bursts[0])).collect();
        // All first packets, then all second ones.
        let frames =
            |place: usize| bursts.iter().map(move |(_, _, burst)| burst.frames[place].to_bytes());
        table.carries_sent(
            &bursts,
            &[frames(0).chain(frames(1)).collect()],
            true,
            virtio_can_say,
        )?;
    }
    assert_eq!(table.drops(), before);
    let Tally { whole, cut, .. } = table.expected;
    assert!(
        whole[0] >= FLOWS as u64 && cut[0] >= FLOWS as u64,
        "both ways out are taken: {:?}",
        table.expected
    );
    Ok(())
}

#[test]
fn what_merged_is_cut_into_the_frames_that_came() -> Result<(), LabError> {
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.hold();
    table.joined.switch(1, Feature::TcpSegmentationOffload, false);
    table.carries(true, |_| false)
}

#[test]
fn without_gro_frames_arrive_one_by_one() -> Result<(), LabError> {
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.joined.switch(0, Feature::GenericReceiveOffload, false);
    table.carries(false, |_| false)
}

impl Table {
    fn new() -> Result<Option<Table>, LabError> {
        let joined = by_veth("packet", "", |hosts| {
            // The kernels on the way neither merge nor cut: `port-a` and B would merge frames, and
            // the kernel cuts what is not below the limit of `port-b`, which is 65,536 with the
            // Ethernet header.
            for link in [&hosts.a_side, &hosts.b.link] {
                link.set_feature("generic-receive-offload", false)?;
            }
            let limit = Some(128 << 10);
            hosts.b_side.set_size_limits(SizeLimits {
                gso_max_size: limit,
                gso_ipv4_max_size: limit,
                ..SizeLimits::default()
            })
        })?;
        let Some(joined) = joined else { return Ok(None) };
        joined.switch(0, Feature::RxUdpGroForwarding, true);
        let sender = RawSocket::open(&joined.a.link, RawOptions::default())?;
        let receiver = RawSocket::open(
            &joined.b.link,
            RawOptions { vnet_headers: true, ..RawOptions::default() },
        )?;
        Ok(Some(Table { joined, sender, receiver, expected: Tally::default() }))
    }

    /// What port A aggregates may be held.
    fn hold(&self) {
        self.joined
            .bridge
            .set_limit(&self.joined.names[0], "gro_flush_timeout", HOLD)
            .expect("a second is allowed");
    }

    /// Sends the whole table. What `merges` arrives as one packet where `whole` says so of its
    /// frames, and all else frame by frame, bit for bit.
    fn carries(&mut self, merges: bool, whole: impl Fn(&[Frame]) -> bool) -> Result<(), LabError> {
        self.obeyed()?;
        let before = self.drops();
        let cases: Vec<_> = gro_table::all()
            .into_iter()
            .enumerate()
            .map(|(number, case)| addressed(case, number as u16))
            .collect();
        for (number, cases) in cases.chunks(TOGETHER).enumerate() {
            // The next burst of a case is sent when what the one before it became has arrived, and
            // is held no more.
            for round in 0..cases.iter().map(|case| case.bursts.len()).max().unwrap_or(0) {
                let bursts = cases.iter().zip(number * TOGETHER..);
                let bursts: Vec<_> = bursts
                    .filter_map(|(case, number)| {
                        Some((number as u16, case, case.bursts.get(round)?))
                    })
                    .collect();
                self.carries_bursts(&bursts, merges, &whole)?;
            }
        }
        // What is held longest has left by now.
        let late = self.receiver.capture(Duration::from_nanos(2 * HOLD), usize::MAX)?;
        let late: Vec<_> = late
            .frames
            .iter()
            .filter(|frame| CASES.of(frame).is_some_and(|number| number != NO_CASE))
            .collect();
        assert!(late.is_empty(), "more than was sent: {late:?}");
        assert_eq!(self.drops(), before);
        Ok(())
    }

    fn carries_bursts(
        &mut self,
        bursts: &[(u16, &Case, &Burst)],
        merges: bool,
        whole: impl Fn(&[Frame]) -> bool,
    ) -> Result<(), LabError> {
        let sent: Vec<Vec<_>> = bursts
            .iter()
            .map(|(_, _, burst)| burst.frames.iter().map(Frame::to_bytes).collect())
            .collect();
        self.carries_sent(bursts, &sent, merges, whole)
    }

    /// As [`carries_bursts`](Self::carries_bursts), with their frames sent in this order.
    fn carries_sent(
        &mut self,
        bursts: &[(u16, &Case, &Burst)],
        sent: &[Vec<Vec<u8>>],
        merges: bool,
        whole: impl Fn(&[Frame]) -> bool,
    ) -> Result<(), LabError> {
        let mut expected = BTreeMap::new();
        for (number, _, burst) in bursts {
            let mut arrivals: Vec<&[Frame]> = Vec::new();
            for packet in burst.packets() {
                let count = packet.len() as u64;
                let joined = merges && count > 1;
                let leaves_whole = joined && whole(packet);
                if joined {
                    add(&mut self.expected.merged, [count - 1, 1]);
                    add(
                        if leaves_whole {
                            &mut self.expected.whole
                        } else {
                            &mut self.expected.cut
                        },
                        [1, count],
                    );
                }
                arrivals.extend(packet.chunks(if leaves_whole { packet.len() } else { 1 }));
            }
            expected.insert(*number, arrivals);
        }
        for frames in sent {
            self.sender.send(frames)?;
        }
        let captured = CASES.capture(
            &self.receiver,
            PATIENCE,
            expected.values().map(Vec::len).sum(),
            |number| number != NO_CASE,
        )?;
        for (number, case, _) in bursts {
            compare(&case.name, &expected[number], captured.get(number).map_or(&[], Vec::as_slice));
        }
        assert_eq!(captured.len(), expected.len(), "frames of other cases: {:?}", captured.keys());
        let names = || {
            let mut names: Vec<_> = bursts.iter().map(|(_, case, _)| &case.name[..]).collect();
            names.dedup();
            names.join("; ")
        };
        // A frame may be captured before it is counted.
        let start = Instant::now();
        while self.tally() != self.expected && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.tally(), self.expected, "{}", names());
        Ok(())
    }

    /// Waits until the bridge does what it was told. The thread that forwards a frame looks at its
    /// settings before the next poll: what was set before a frame was sent holds when it has
    /// arrived. A pure ACK is held by no setting. A thread that knows only one port as yet has
    /// nowhere to send it: then another is sent.
    fn obeyed(&self) -> Result<(), LabError> {
        let frame = Case {
            name: String::new(),
            bursts: vec![Burst { frames: vec![Frame::tcp4(1, 0)], arrives: vec![0] }],
        };
        let frame = addressed(frame, NO_CASE).bursts[0].frames[0].to_bytes();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.sender.send(&[&frame])?;
            if let Some(captured) = CASES
                .capture(&self.receiver, PATIENCE / 20, 1, |number| number == NO_CASE)?
                .get(&NO_CASE)
            {
                assert_eq!(captured[0].bytes, frame);
                return Ok(());
            }
        }
        panic!("nothing arrived in {PATIENCE:?}: {:?}", self.joined.bridge.stats());
    }

    /// What both ports dropped, by cause.
    fn drops(&self) -> [BTreeMap<String, u64>; 2] {
        [0, 1].map(|side| self.joined.stats(side).drops)
    }

    fn tally(&self) -> Tally {
        let (from_a, to_b) = (self.joined.stats(0), self.joined.stats(1));
        Tally {
            merged: [from_a.merged, from_a.aggregated],
            whole: [to_b.tx_super_packets, to_b.tx_super_segments],
            cut: [to_b.segmented, to_b.segments],
        }
    }
}

fn add(counters: &mut [u64; 2], more: [u64; 2]) {
    for (counter, more) in counters.iter_mut().zip(more) {
        *counter += more;
    }
}

/// Can a virtio header of a packet socket say what this super-packet is to be cut into? It names
/// neither tunnels nor identifications that stay the same nor CWR on all segments.
fn virtio_can_say(frames: &[Frame]) -> bool {
    let same_identifications = matches!((&frames[0].ip, &frames[1].ip), (Ip::V4(first), Ip::V4(second)) if first.id == second.id);
    let has_cwr = matches!(&frames[0].transport, Transport::Tcp(tcp) if tcp.flags & CWR != 0);
    frames[0].tunnel.is_none() && !same_identifications && !has_cwr
}

/// The case between stations and addresses of its own. They belong to no host, so that no kernel
/// answers: the bridge floods the frames, and B's captures them for another.
fn addressed(mut case: Case, number: u16) -> Case {
    let [high, low] = number.to_be_bytes();
    let from = |ip: &mut Ip, net: u8| match ip {
        Ip::V4(ip) => (ip.source, ip.destination) = ([198, net, high, low], [198, 51, 100, net]),
        Ip::V6(ip) => ip.source[12..].copy_from_slice(&[net, 0, high, low]),
    };
    for frame in case.bursts.iter_mut().flat_map(|burst| &mut burst.frames) {
        from(&mut frame.ip, 18);
        if let Some(tunnel) = &mut frame.tunnel {
            from(&mut tunnel.ip, 19);
        }
        let link = frame.link.as_mut().expect("an Ethernet frame");
        (link.source, link.destination) = (CASES.source(number), [2, b'g', b'r', b'o', 0xff, 0xfe]);
    }
    case
}

/// Each captured packet is that of these frames, and there are no others.
fn compare(case: &str, expected: &[&[Frame]], captured: &[CapturedFrame]) {
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    let packets: Vec<_> = expected.iter().map(|frames| joined(frames).to_bytes()).collect();
    let bytes: Vec<_> = captured.iter().map(|frame| frame.bytes.clone()).collect();
    assert_eq!(
        lengths(&bytes),
        lengths(&packets),
        "{case}: lengths of the packets that arrived, with their headers"
    );
    for (number, ((frames, packet), frame)) in
        expected.iter().zip(&packets).zip(captured).enumerate()
    {
        assert!(
            frame.vlan.is_none() && frame.bytes == *packet,
            "{case}: packet {number} is {frame:?}"
        );
        let header = frame.vnet.expect("asked for");
        let found = (header.gso_type, header.gso_size, header.flags & 1);
        let version = if matches!(frames[0].ip, Ip::V4(_)) { 1 } else { 4 };
        // NEEDS_CSUM goes with a super-packet, and what went through alone has its own checksum.
        let wanted =
            if frames.len() > 1 { (version, frames[0].payload.len() as u16, 1) } else { (0, 0, 0) };
        assert_eq!(found, wanted, "{case}: packet {number}: gso_type, gso_size, NEEDS_CSUM");
    }
}

/// What frames that merged are: the headers of the first with the flags of all, their payloads one
/// after the other, and a checksum that a device is to fill in.
fn joined(frames: &[Frame]) -> Frame {
    let mut packet = frames[0].clone();
    for frame in &frames[1..] {
        let mut frame = frame.clone();
        packet.payload.append(&mut frame.payload);
        packet.tcp_mut().flags |= frame.tcp_mut().flags;
        packet.tcp_mut().checksum = Checksum::Partial;
    }
    packet
}
