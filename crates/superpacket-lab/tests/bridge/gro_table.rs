//! The kernel's GRO table, sent frame by frame by host A and captured by host B, with the bridge
//! between them. The engine's own test of the table is `gro_table` of the crate `superpacket`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use superpacket_bridge::settings::PortChange;
use superpacket_lab::{CapturedFrame, LabError, RawOptions, RawSocket, SizeLimits};
use superpacket_port::features::Feature;
use superpacket_traffic::frame::{CWR, Checksum, Frame, Ip, Transport};
use superpacket_traffic::gro_table::{self, Burst, Case};

use crate::joined::{Joined, by_veth};
use crate::numbered::Numbered;

/// Time for which the bridge holds packets that others may join, in nanoseconds. A burst may arrive
/// in two polls. The time exceeds the longest pause of a sender that loses its CPU within a burst.
const HOLD_TIME: u64 = 200_000_000;

/// Cases sent together, so that they share one hold time; too few to fill a bucket of the flow
/// table.
const PARALLEL_CASES: usize = 16;

/// Time limit for the arrival of all frames.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Frames of the cases, numbered by case.
const CASES: Numbered = Numbered(*b"gro");

/// The number of frames that belong to no case.
const NO_CASE: u16 = u16::MAX;

/// Counters of the ports for these frames only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PortCounts {
    /// Port A: merged packets, and the packets merged into them.
    merged: [u64; 2],
    /// Port B: super-packets sent whole, and their frames.
    whole: [u64; 2],
    /// Port B: super-packets that were segmented, and their segments.
    cut: [u64; 2],
}

/// Host A with a sending socket, host B with a capturing one, and the bridge.
struct Table {
    joined: Joined,
    sender: RawSocket,
    receiver: RawSocket,
    expected: PortCounts,
}

#[test]
fn what_merges_arrives_as_one() -> Result<(), LabError> {
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.hold();
    table.carries(true, virtio_can_describe)?;
    let PortCounts { whole, cut, .. } = table.expected;
    assert!(whole[0] >= 40 && cut[0] >= 100, "both ways out are taken: {:?}", table.expected);
    Ok(())
}

/// Each flow is a separate case here: the bridge may sort the packets of a poll by flow, so that
/// flows may arrive in another order.
#[test]
fn as_many_flows_as_a_poll_has_all_merge() -> Result<(), LabError> {
    const FLOWS: usize = 512;
    let Some(mut table) = Table::new()? else { return Ok(()) };
    table.hold();
    table.wait_until_applied()?;
    let before = table.drops();
    for (path, frames) in gro_table::capacity(FLOWS as u16) {
        let (first, second) = frames.split_at(FLOWS);
        let case = |(number, (first, second)): (u16, (&Frame, &Frame))| {
            let burst = Burst { frames: vec![first.clone(), second.clone()], arrives: vec![400] };
            with_own_addresses(
                Case { name: format!("{FLOWS} flows, {path}"), bursts: vec![burst] },
                number,
            )
        };
        let cases: Vec<_> = (0..).zip(first.iter().zip(second)).map(case).collect();
        let bursts: Vec<_> =
            (0..).zip(&cases).map(|(number, case)| (number, case, &case.bursts[0])).collect();
        // All first packets, then all second packets.
        let frames =
            |place: usize| bursts.iter().map(move |(_, _, burst)| burst.frames[place].to_bytes());
        table.carries_sent(
            &bursts,
            &[frames(0).chain(frames(1)).collect()],
            true,
            virtio_can_describe,
        )?;
    }
    assert_eq!(table.drops(), before);
    let PortCounts { whole, cut, .. } = table.expected;
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
            // The kernels on the way must neither merge nor segment. `port-a` and B could merge,
            // and the kernel segments packets above the limit of `port-b`: 65,536 with the Ethernet
            // header.
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
        Ok(Some(Table { joined, sender, receiver, expected: PortCounts::default() }))
    }

    /// Lets port A hold aggregated packets.
    fn hold(&self) {
        self.joined
            .bridge
            .set_port(&self.joined.names[0], &PortChange::setting("gro_flush_timeout", HOLD_TIME))
            .expect("a second is allowed");
    }

    /// Sends the whole table. If `merges`, packets arrive merged where `whole` accepts their
    /// frames; all others arrive frame by frame, bit for bit.
    fn carries(&mut self, merges: bool, whole: impl Fn(&[Frame]) -> bool) -> Result<(), LabError> {
        self.wait_until_applied()?;
        let before = self.drops();
        let cases: Vec<_> = gro_table::all()
            .into_iter()
            .enumerate()
            .map(|(number, case)| with_own_addresses(case, number as u16))
            .collect();
        for (number, cases) in cases.chunks(PARALLEL_CASES).enumerate() {
            // The next burst of a case is sent when the previous one has arrived and nothing is
            // held.
            for round in 0..cases.iter().map(|case| case.bursts.len()).max().unwrap_or(0) {
                let bursts = cases.iter().zip(number * PARALLEL_CASES..);
                let bursts: Vec<_> = bursts
                    .filter_map(|(case, number)| {
                        Some((number as u16, case, case.bursts.get(round)?))
                    })
                    .collect();
                self.carries_bursts(&bursts, merges, &whole)?;
            }
        }
        // The hold time of all packets is over.
        let late = self.receiver.capture(Duration::from_nanos(2 * HOLD_TIME), usize::MAX)?;
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

    /// Like [`carries_bursts`](Self::carries_bursts), with an explicit order of the frames.
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
            TIME_LIMIT,
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
        while self.port_counts() != self.expected && start.elapsed() < TIME_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.port_counts(), self.expected, "{}", names());
        Ok(())
    }

    /// Waits until the bridge applies its settings. A forwarding thread reads them before each
    /// poll, so that they apply once a later frame has arrived. The probe is a pure ACK, which is
    /// never held. It is sent again if a thread does not know the other port yet.
    fn wait_until_applied(&self) -> Result<(), LabError> {
        let frame = Case {
            name: String::new(),
            bursts: vec![Burst { frames: vec![Frame::tcp4(1, 0)], arrives: vec![0] }],
        };
        let frame = with_own_addresses(frame, NO_CASE).bursts[0].frames[0].to_bytes();
        let start = Instant::now();
        while start.elapsed() < TIME_LIMIT {
            self.sender.send(&[&frame])?;
            if let Some(captured) = CASES
                .capture(&self.receiver, TIME_LIMIT / 20, 1, |number| number == NO_CASE)?
                .get(&NO_CASE)
            {
                assert_eq!(captured[0].bytes, frame);
                return Ok(());
            }
        }
        panic!("nothing arrived in {TIME_LIMIT:?}: {:?}", self.joined.bridge.stats());
    }

    /// Returns the drops of both ports, by cause.
    fn drops(&self) -> [BTreeMap<String, u64>; 2] {
        [0, 1].map(|side| self.joined.stats(side).drops)
    }

    fn port_counts(&self) -> PortCounts {
        let (from_a, to_b) = (self.joined.stats(0), self.joined.stats(1));
        PortCounts {
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

/// Returns whether a packet socket's virtio header can describe how to segment this super-packet.
/// It cannot express tunnels, constant identifications, or CWR on all segments.
fn virtio_can_describe(frames: &[Frame]) -> bool {
    let same_identifications = matches!((&frames[0].ip, &frames[1].ip), (Ip::V4(first), Ip::V4(second)) if first.id == second.id);
    let has_cwr = matches!(&frames[0].transport, Transport::Tcp(tcp) if tcp.flags & CWR != 0);
    frames[0].tunnel.is_none() && !same_identifications && !has_cwr
}

/// Gives the case unique stations and addresses. No host has them, so that no kernel answers; the
/// bridge floods the frames, and B captures them in promiscuous mode.
fn with_own_addresses(mut case: Case, number: u16) -> Case {
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

/// Checks that the captured packets are exactly those of these frames.
fn compare(case: &str, expected: &[&[Frame]], captured: &[CapturedFrame]) {
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    let packets: Vec<_> = expected.iter().map(|frames| merge(frames).to_bytes()).collect();
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
        // Super-packets carry NEEDS_CSUM; single packets keep their own checksum.
        let wanted =
            if frames.len() > 1 { (version, frames[0].payload.len() as u16, 1) } else { (0, 0, 0) };
        assert_eq!(found, wanted, "{case}: packet {number}: gso_type, gso_size, NEEDS_CSUM");
    }
}

/// Merges frames: the headers of the first with the flags of all, the payloads in sequence, and a
/// partial checksum.
fn merge(frames: &[Frame]) -> Frame {
    let mut packet = frames[0].clone();
    for frame in &frames[1..] {
        let mut frame = frame.clone();
        packet.payload.append(&mut frame.payload);
        packet.tcp_mut().flags |= frame.tcp_mut().flags;
        packet.tcp_mut().checksum = Checksum::Partial;
    }
    packet
}
