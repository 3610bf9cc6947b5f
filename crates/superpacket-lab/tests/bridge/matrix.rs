//! Every kind of packet that the engine merges, sent through ports whose kernel segments.
//!
//! Host A sends single frames. The bridge merges them and sends them to a packet or TAP port.
//! Behind it are the kernel's bridge and a device without offloads. Host B must receive the frames
//! that host A sent: byte for byte, complete and in order. This covers TCP in PPPoE and MPLS too,
//! which no kernel segments.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::PortChange;
use superpacket_lab::{
    CapturedFrame, Host, LabError, Link, RawOptions, RawSocket, available_or_skip,
};
use superpacket_port::features::Feature;
use superpacket_traffic::frame::{
    Carrier, Checksum, Frame, Geneve, Gre, Ip, Mpls, Pppoe, Vlan, Vxlan,
};

use crate::joined::{port, start};
use crate::numbered::Numbered;

/// Frames per cell; all of them merge into one packet.
const FRAMES: usize = 6;

/// Cells that are sent before arrivals are checked.
const PARALLEL_CELLS: usize = 16;

/// Frames of the cells, numbered by cell.
const CELLS: Numbered = Numbered(*b"mat");

/// Time limit for the arrival of frames.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time for which the bridge holds packets that others may join, in nanoseconds.
const HOLD_TIME: u64 = 100_000_000;

/// The egress port of the merged packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Egress {
    /// A packet port on a device without offloads.
    Device,
    /// A packet port on a device with offloads, followed by the kernel's bridge and a device
    /// without.
    KernelBridge,
    /// A TAP device that is a port of the kernel's bridge, next to a device without offloads.
    Tap,
}

impl fmt::Display for Egress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Egress::Device => "packet port, device without offloads",
            Egress::KernelBridge => "packet port, kernel's bridge",
            Egress::Tap => "TAP port, kernel's bridge",
        })
    }
}

/// A cell of the matrix: a kind of packet, and its frames.
struct Cell {
    link: &'static str,
    tunnel: &'static str,
    protocol: &'static str,
    number: u16,
    frames: Vec<Vec<u8>>,
}

/// A name, and a function that creates a frame of that kind.
type Named<Make> = (&'static str, Make);

/// A function that puts a frame into a tunnel.
type Encapsulate = fn(Frame) -> Frame;

/// Returns the link headers. Linux segments behind the first six.
fn link_headers() -> [Named<fn(&mut Frame)>; 12] {
    fn vlan(tpid: u16, vid: u16) -> Vlan {
        Vlan { tpid, vid, ..Vlan::default() }
    }
    fn mpls(labels: &[u32]) -> Vec<Mpls> {
        labels.iter().map(|label| Mpls { label: *label, ..Mpls::default() }).collect()
    }
    [
        ("Ethernet", |_| ()),
        ("VLAN", |frame| frame.vlans = vec![vlan(0x8100, 5)]),
        ("service VLAN", |frame| frame.vlans = vec![vlan(0x88a8, 5)]),
        ("QinQ", |frame| frame.vlans = vec![vlan(0x88a8, 5), vlan(0x8100, 6)]),
        ("two VLANs", |frame| frame.vlans = vec![vlan(0x8100, 5), vlan(0x8100, 6)]),
        ("three VLANs", |frame| {
            frame.vlans = vec![vlan(0x8100, 5), vlan(0x8100, 6), vlan(0x8100, 7)]
        }),
        ("tag 0x9100", |frame| frame.vlans = vec![vlan(0x9100, 5)]),
        ("PPPoE", |frame| frame.pppoe = Some(Pppoe::default())),
        ("PPPoE in VLAN", |frame| {
            (frame.vlans, frame.pppoe) = (vec![vlan(0x8100, 5)], Some(Pppoe::default()))
        }),
        ("MPLS", |frame| frame.mpls = mpls(&[100])),
        ("MPLS, two labels", |frame| frame.mpls = mpls(&[100, 200])),
        ("MPLS in VLAN", |frame| (frame.vlans, frame.mpls) = (vec![vlan(0x8100, 5)], mpls(&[100]))),
    ]
}

/// Returns the tunnels. Linux segments in VXLAN and Geneve with a header of 24 bytes only.
fn tunnels() -> [Named<Encapsulate>; 11] {
    [
        ("none", |frame| frame),
        ("VXLAN/IPv4", Frame::in_vxlan4),
        ("VXLAN/IPv6", Frame::in_vxlan6),
        ("VXLAN, inner tag 0x9100", |frame| {
            frame.in_vxlan4().with(|frame| {
                frame.tunnel_mut().vlans = vec![Vlan { tpid: 0x9100, ..Vlan::default() }]
            })
        }),
        ("Geneve/IPv4", Frame::in_geneve),
        ("Geneve/IPv4 of IP, checksum", |frame| {
            let mut geneve = Geneve::default();
            geneve.udp.checksum = Checksum::Right;
            frame.through(Ip::V4(Default::default()), Carrier::Geneve(geneve), false)
        }),
        ("GRE/IPv4, key", Frame::in_gre),
        ("GRE/IPv4 of Ethernet", |frame| {
            frame.through(Ip::V4(Default::default()), Carrier::Gre(Gre::default()), true)
        }),
        ("IP/IPv4", Frame::in_ip4),
        ("IP/IPv6", Frame::in_ip6),
        ("VXLAN in VXLAN", |frame| {
            frame.in_vxlan4().through(
                Ip::V4(Default::default()),
                Carrier::Vxlan(Vxlan::default()),
                true,
            )
        }),
    ]
}

fn cells() -> Vec<Cell> {
    let protocols: [Named<fn() -> Frame>; 4] = [
        ("TCP/IPv4", || Frame::tcp4(1, 1000).with_id(100)),
        ("TCP/IPv6", || Frame::tcp6(1, 1000)),
        ("UDP/IPv4", || Frame::udp4(1000).with_id(100)),
        ("UDP/IPv6", || Frame::udp6(1000)),
    ];
    let mut cells = Vec::new();
    for (link, behind) in link_headers() {
        for (tunnel, through) in tunnels() {
            for (protocol, frame) in protocols {
                let number = cells.len() as u16;
                let first = through(frame()).with(|frame| {
                    behind(frame);
                    let ethernet = frame.link.as_mut().expect("an Ethernet frame");
                    (ethernet.source, ethernet.destination) =
                        (CELLS.source(number), [2, b'm', b'a', b't', 0xff, 0xfe]);
                });
                let frames = first.run(FRAMES).iter().map(Frame::to_bytes).collect();
                cells.push(Cell { link, tunnel, protocol, number, frames });
            }
        }
    }
    cells
}

/// Switches off all offloads of a device.
fn without_offloads(link: &Link) -> Result<(), LabError> {
    [
        "tx-udp-segmentation",
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "tx-checksumming",
    ]
    .into_iter()
    .try_for_each(|feature| link.set_feature(feature, false))
}

/// Hosts A and B, and the devices between them.
struct Matrix {
    bridge: Bridge,
    names: [String; 2],
    sender: RawSocket,
    receiver: RawSocket,
    /// Links that must exist while frames pass.
    _hosts: Vec<Host>,
}

impl Matrix {
    fn new(egress: Egress) -> Result<Option<Matrix>, LabError> {
        let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(None) };
        let (a, b, kernel) = (Host::new("A")?, Host::new("B")?, Host::new("K")?);
        let (a_link, a_side) = Link::veth(&a, "eth0", &middle, "port-a")?;
        let names = [
            "packet:port-a".to_owned(),
            if egress == Egress::Tap { "tap:port-b" } else { "packet:port-b" }.to_owned(),
        ];
        // The frames of tunnels are longer than the hosts' MTU.
        let b_link = match egress {
            Egress::Device => {
                let (b_link, b_side) = Link::veth(&b, "eth0", &middle, "port-b")?;
                without_offloads(&b_side)?;
                b_side.set_mtu(2000)?;
                b_link
            }
            _ => Link::veth(&b, "eth0", &kernel, "out")?.0,
        };
        let inner = if egress == Egress::KernelBridge {
            let (inner, side) = Link::veth(&kernel, "in", &middle, "port-b")?;
            side.set_mtu(2000)?;
            Some(inner)
        } else {
            None
        };
        [&a_link, &a_side, &b_link].into_iter().try_for_each(|link| link.set_mtu(2000))?;
        for link in [&a_side, &b_link] {
            link.set_feature("generic-receive-offload", false)?;
        }
        let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
        if egress != Egress::Device {
            let inner = match inner {
                Some(inner) => inner,
                None => middle.link("port-b").move_to(&kernel)?,
            };
            inner.set_mtu(2000)?;
            inner.up()?;
            let out = kernel.link("out");
            out.set_mtu(2000)?;
            without_offloads(&out)?;
            Link::bridge(&kernel, "br0", &[&inner, &out])?.up()?;
        }
        bridge
            .set_feature(&names[0], Feature::RxUdpGroForwarding, true, false)
            .expect("the port is there");
        let hold = PortChange::setting("gro_flush_timeout", HOLD_TIME);
        bridge.set_port(&names[0], &hold).expect("a second is allowed");
        let sender = RawSocket::open(&a_link, RawOptions::default())?;
        let receiver =
            RawSocket::open(&b_link, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
        Ok(Some(Matrix { bridge, names, sender, receiver, _hosts: vec![a, b, kernel, middle] }))
    }

    fn counted(
        &self,
        side: usize,
        count: impl Fn(&superpacket_bridge::report::PortStats) -> u64,
    ) -> u64 {
        self.bridge.stats().iter().filter(|stats| stats.port == self.names[side]).map(count).sum()
    }

    /// Waits until frames pass and both ports apply their settings.
    fn wait_until_applied(&self) -> Result<(), LabError> {
        let probe = Frame::udp4(10)
            .with(|frame| {
                frame.link.as_mut().expect("a link header").source = CELLS.source(u16::MAX)
            })
            .to_bytes();
        let start = Instant::now();
        while start.elapsed() < TIME_LIMIT {
            self.sender.send(&[&probe])?;
            if !self.capture(TIME_LIMIT / 20, 1, |number| number == u16::MAX)?.is_empty() {
                return Ok(());
            }
        }
        panic!("nothing passed in {TIME_LIMIT:?}: {:?}", self.bridge.stats());
    }

    /// Captures up to this many frames of the wanted cells, within this time.
    fn capture(
        &self,
        time: Duration,
        count: usize,
        wanted: impl Fn(u16) -> bool,
    ) -> Result<BTreeMap<u16, Vec<Vec<u8>>>, LabError> {
        let captured = CELLS.capture(&self.receiver, time, count, wanted)?;
        for frame in captured.values().flatten() {
            let header = frame.vnet.expect("asked for");
            assert_eq!(
                (header.gso_type, header.flags & 1),
                (0, 0),
                "the device left something to host B: {header:?}"
            );
        }
        let frames =
            |frames: Vec<CapturedFrame>| frames.iter().map(CapturedFrame::with_tag).collect();
        Ok(captured.into_iter().map(|(number, captured)| (number, frames(captured))).collect())
    }

    /// Sends all cells, and prints the result of each.
    fn carries(&self, egress: Egress) -> Result<(), LabError> {
        self.wait_until_applied()?;
        // Frames may have met a device that was not up yet.
        let dropped_before = self.counted(1, |stats| stats.drops.values().sum());
        let cells = cells();
        println!("{} cells of {FRAMES} frames through: {egress}", cells.len());
        let (mut faults, mut sent_whole) = (Vec::new(), 0);
        for chunk in cells.chunks(PARALLEL_CELLS) {
            let frames: Vec<_> = chunk.iter().flat_map(|cell| &cell.frames).collect();
            let (merged, whole) = (
                self.counted(0, |stats| stats.merged),
                self.counted(1, |stats| stats.tx_super_packets),
            );
            self.sender.send(&frames)?;
            let numbers = chunk[0].number..=chunk[chunk.len() - 1].number;
            let captured =
                self.capture(TIME_LIMIT, frames.len(), |number| numbers.contains(&number))?;
            let merged = self.counted(0, |stats| stats.merged) - merged;
            if merged != (chunk.len() * (FRAMES - 1)) as u64 {
                faults.push(format!(
                    "cells {numbers:?}: {merged} frames merged, of {}",
                    chunk.len() * (FRAMES - 1)
                ));
            }
            sent_whole += self.counted(1, |stats| stats.tx_super_packets) - whole;
            for Cell { link, tunnel, protocol, number, frames } in chunk {
                let arrived = captured.get(number).map_or(&[][..], Vec::as_slice);
                let same =
                    arrived.iter().zip(frames).filter(|(arrived, sent)| arrived == sent).count();
                let cell = format!(
                    "{link} | {tunnel} | {protocol} | arrived {} of {}, {same} as sent",
                    arrived.len(),
                    frames.len()
                );
                println!("{cell}");
                if arrived != frames {
                    faults.push(cell);
                }
            }
        }
        let late = self.capture(Duration::from_nanos(2 * HOLD_TIME), usize::MAX, |number| {
            number != u16::MAX
        })?;
        assert!(late.is_empty(), "frames that nobody sent: {late:?}");
        println!("{sent_whole} super-packets left for the kernel to segment");
        assert!(faults.is_empty(), "{egress}:\n{}", faults.join("\n"));
        // Ethernet and three kinds of tags, with four protocols; and in tunnels whose header has
        // the fields.
        let least = if egress == Egress::Tap { 60 } else { 20 };
        assert!(
            sent_whole >= least,
            "{sent_whole} super-packets left whole: the kernel had too little to do"
        );
        let stats = self.bridge.stats();
        let port =
            stats.iter().find(|stats| stats.port == self.names[1]).expect("the port is there");
        assert!(
            port.segmented_for_link > 0 && port.segmented_for_tunnel > 0,
            "each cut has its reason: {port:?}"
        );
        assert_eq!(
            (port.fallbacks, port.segmented_for_refusal),
            (0, 0),
            "nothing was handed over that the kernel refuses"
        );
        assert_eq!(port.drops.values().sum::<u64>(), dropped_before, "{:?}", port.drops);
        Ok(())
    }
}

fn carries(egress: Egress) -> Result<(), LabError> {
    match Matrix::new(egress)? {
        Some(matrix) => matrix.carries(egress),
        None => Ok(()),
    }
}

#[test]
fn a_device_without_offloads_receives_what_was_sent() -> Result<(), LabError> {
    carries(Egress::Device)
}

#[test]
fn the_kernel_s_bridge_behind_a_packet_port_hands_on_what_was_sent() -> Result<(), LabError> {
    carries(Egress::KernelBridge)
}

#[test]
fn the_kernel_s_bridge_behind_a_tap_port_hands_on_what_was_sent() -> Result<(), LabError> {
    carries(Egress::Tap)
}
