//! AF_XDP ports: `xdp:IFACE`, frames in memory shared with the kernel or the device.
//!
//! | option | values | default |
//! |---|---|---|
//! | `queue` | a number, or `all` | `all`: every receive queue in use, one end each; frames of other queues go to the interface's own stack |
//! | `mode` | `auto`, `native` (the XDP program runs in the driver), `generic` (after the driver) | `auto`: `native` if the driver has XDP |
//! | `copy` | `auto`, `copy` (the kernel copies frames to and from the port's memory), `zero` (the device moves them itself) | `auto`: `zero` if the driver supports it |
//! | `frames` | a power of two from 64 to 65536 | `4096` chunks of memory for each queue, half to receive, half to send |
//! | `frame` | `2k`, `4k` | `2k` bytes a chunk, of which received frames use 256 less |
//! | `multi_buffer` | `auto`, `on`, `off`: frames in several chunks (Linux 6.6) | `auto`: on if the MTU needs it, or if the kernel copies anyway |
//! | `gather` | `on`, `off`: a frame whose payload lies in received chunks goes out from there, and only its headers are copied, to a chunk of their own; it asks for `multi_buffer=on` | `off`: what fits one chunk is copied there, since the kernel takes a page for each further chunk of a frame |
//! | `busy_poll` | microseconds for which looking for packets also polls the device (Linux 5.11) | `0`: not at all |
//! | `partial` | `auto`, `detect`, `off`: incomplete checksums of received frames are recognized | `auto`: on veth |
//! | `hash` | `on`, `off`: the driver is asked for the flow hash of each frame (XDP metadata, Linux 6.3, `mode=native`) | `off` |
//! | `promiscuous` | `on`, `off`: the device is asked for frames to all addresses | `on` |
//!
//! The port requires `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_BPF`, and `CAP_IPC_LOCK` or a sufficient
//! `RLIMIT_MEMLOCK`, in the machine's initial user namespace, since other user namespaces may not
//! load XDP programs. It requires Linux 5.9, but no compiler, library or file: the program has
//! seven instructions, or 27 with `hash=on`. The program disappears with the port, even if the
//! process is killed. An interface with another XDP program is refused.
//!
//! All AF_XDP ports of a process with the same `frames` and `frame` share memory, up to a limit, so
//! this process forwards frames without copying them. The first port allocates twice its own need,
//! and at least four queues, to leave room for a second port. When it is full, a further port
//! allocates new memory.
//!
//! This memory counts towards `RLIMIT_MEMLOCK` once, for any number of queues and ports
//! (`XDP_SHARED_UMEM`): twice queues times `frames` times `frame`, or 256 MiB for 16 queues. It
//! counts once more for each combination of copy mode and multi-buffer mode among its ports. It
//! counts per queue before Linux 5.10, and before 6.7 for frames in several chunks. With zero copy
//! and frames in several chunks, it counts per port.
//!
//! # Limits of AF_XDP
//! AF_XDP transfers bytes without metadata: no partial checksums, no super-packets, and no VLAN
//! tags kept outside the frame.
//!
//! - **Sending**: checksums must be complete and frames segmented. [`Capabilities`] has neither
//!   `tx-checksumming` nor `tcp-segmentation-offload`.
//! - **Receiving on veth**: work that the other end's stack left to its device arrives undone.
//!   `partial=detect` recognizes incomplete TCP, UDP and DCCP checksums, so the other end's
//!   checksum offload may stay on. With `mode=native` the kernel switches TSO off at the other
//!   end. With `mode=generic` do so yourself (`ethtool -K PEER tso off gso off`), or
//!   super-packets arrive as frames above the MTU, which no port can send.
//! - **VLAN tags**: a tag that the device, or veth's other end, removed from the frame is lost.
//!   Switch that off: `ethtool -K IFACE rxvlan off`, on veth `ethtool -K PEER txvlan off`.

mod btf;
mod counts;
mod ends;
mod facts;
mod instructions;
mod opening;
mod option;
mod partial;
mod program;
mod queue;
mod receive;
mod ring;
mod send;
mod shared;
mod socket;
mod umem;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::features::{Feature, FeatureSet};
use superpacket::segment::GsoSupport;
use superpacket::wire::ipv4;

use super::ethtool::has_feature;
use super::interface::NetworkInterface;
use super::{
    Capabilities, MAX_SLICES, Port, PortCounters, PortError, PortSpec, PortState, Receive,
    SpecError, Transmit,
};
use ends::{XdpReceiver, XdpSender};
use facts::PortFacts;
use opening::Opening;
use option::{AutoSwitch, HEADROOM, MAX_CHUNKS, XdpOptions};
use program::AttachMode;
use queue::XdpQueue;
use shared::{LINK_HEADER, XdpShared};

/// An open AF_XDP port.
#[derive(Debug)]
pub struct XdpPort {
    shared: Arc<XdpShared>,
    hardware_address: Option<[u8; 6]>,
    driver: String,
    slot: AttachMode,
    several: bool,
    are_receivers_out: bool,
    next_sender: usize,
    /// The counters of each queue's socket, as they were last read.
    statistics: Vec<XdpStatistics>,
}

/// The statistics of an AF_XDP port, summed over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Frames that the kernel dropped: too long, or without a chunk in the fill ring
    /// (`rx_dropped`).
    pub rx_dropped: u64,
    /// Frames that the kernel dropped because the RX ring was full (`rx_ring_full`).
    pub rx_ring_full: u64,
    /// Number of times that the kernel found the fill ring empty (`rx_fill_ring_empty_descs`).
    pub fill_ring_empty: u64,
    /// Chunks in the fill ring that the kernel refused (`rx_invalid_descs`), and received
    /// descriptors that this port refused.
    pub rx_invalid: u64,
    /// Descriptors in the TX ring that the kernel refused (`tx_invalid_descs`).
    pub tx_invalid: u64,
    /// Frames sent from the chunks in which they were received.
    pub sent_in_place: u64,
    /// Frames that were copied to other chunks, and sent from there.
    pub sent_by_copy: u64,
    /// Frames sent partly from the chunks in which they were received, and partly from copies, for
    /// example of headers (`gather=on`).
    pub sent_gathered: u64,
    /// Number of bytes copied to chunks.
    pub bytes_copied: u64,
    /// Number of times that a TX ring or the device's queue was full.
    pub tx_full: u64,
    /// Frames refused because they need an offload that the port lacks.
    pub tx_refused: u64,
    /// System calls that made the kernel process a TX ring.
    pub tx_wakeups: u64,
    /// System calls that made the kernel process a fill ring.
    pub rx_wakeups: u64,
}

impl XdpPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        XdpOptions::read(spec).map(drop)
    }

    /// Opens the port named by a port string of kind `xdp`.
    ///
    /// # Errors
    /// [`PortError`] for invalid options, a missing interface or queue, another attached program, a
    /// mode that the driver lacks, a missing permission, or another failed system call.
    pub fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = XdpOptions::read(spec)?;
        let mut interface = NetworkInterface::open(spec.name(), spec.device())?;
        let system = |action: &'static str| {
            move |error: io::Error| PortError::system(spec.name(), action, error)
        };
        let link = interface.link().map_err(system("asking for the interface (RTM_GETLINK)"))?;
        let link = link.ok_or_else(|| PortError::Gone { port: spec.name().into() })?;
        let driver = interface.ethtool().driver().unwrap_or_default();
        let opening = Opening { spec, options, link, driver: &driver };
        let numbers = opening.queues(&interface)?;
        let needed = link.mtu + LINK_HEADER > options.room();
        if needed && options.multi_buffer == AutoSwitch::Off {
            let room = options.room() - LINK_HEADER;
            return Err(opening.unsupported(format!(
                "with multi_buffer=off and frame={} the MTU is {room} at most, and it is {}",
                options.frame_size, link.mtu
            )));
        }
        let (redirect, fragments) = opening.program(&numbers, needed)?;
        let (attached, slot) = opening.attach(&redirect, &mut interface)?;
        let (queues, several) = opening.bind(&numbers, slot, needed && fragments)?;
        if needed && !several {
            return Err(opening.unsupported(format!(
                "the MTU of {} needs frames in several chunks, which take Linux 6.6: a smaller MTU or frame=4k may do",
                link.mtu
            )));
        }
        for queue in &queues {
            redirect
                .set(queue.number(), queue.socket())
                .map_err(system("giving frames to a socket (BPF_MAP_UPDATE_ELEM)"))?;
        }
        let promiscuous = options.promiscuous.then(|| socket::promiscuous(link.index)).transpose();
        let promiscuous = promiscuous
            .map_err(system("asking for frames to all addresses (PACKET_MR_PROMISC)"))?;
        let zero_copy = queues.iter().all(|queue| queue.is_zero_copy());
        let detect = options.partial == AutoSwitch::On
            || (options.partial == AutoSwitch::Auto && driver == "veth");
        if driver != "veth" && has_feature(&interface, "rx-vlan-hw-parse").unwrap_or(false) {
            tracing::warn!(
                port = spec.name(),
                "the device takes VLAN tags out of frames, which AF_XDP loses: ethtool -K {} rxvlan off",
                spec.device()
            );
        }
        tracing::info!(port = spec.name(), driver, mode = %slot, zero_copy, queues = queues.len(), multi_buffer = several, "AF_XDP port opened");
        let statistics = vec![XdpStatistics::default(); queues.len()];
        let shared = XdpShared {
            _link: attached,
            _promiscuous: promiscuous,
            facts: PortFacts {
                name: spec.name().into(),
                detect,
                hash: options.hash,
                busy_poll: options.busy_poll != 0,
                zero_copy,
                stalled: AtomicBool::new(false),
            },
            queues,
            interface: Mutex::new((interface, Instant::now())),
            mtu: AtomicU32::new(link.mtu),
        };
        Ok(XdpPort {
            shared: Arc::new(shared),
            hardware_address: link.hardware_address,
            driver,
            slot,
            several,
            are_receivers_out: false,
            next_sender: 0,
            statistics,
        })
    }

    /// Returns whether the XDP program runs in the driver (`mode=native`).
    pub fn is_native(&self) -> bool {
        self.slot == AttachMode::Native
    }

    /// Returns whether the device moves the frames to and from the port's memory itself
    /// (`copy=zero`).
    pub fn is_zero_copy(&self) -> bool {
        self.shared.facts.zero_copy
    }

    /// Returns the numbers of the queues in use.
    pub fn queues(&self) -> Vec<u32> {
        self.shared.queues.iter().map(|queue| queue.number()).collect()
    }

    /// Returns the statistics since the port was opened.
    pub fn statistics(&mut self) -> XdpStatistics {
        let mut total = XdpStatistics::default();
        for (queue, last) in self.shared.queues.iter().zip(&mut self.statistics) {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let counts = &queue.counts;
            // If the interface no longer exists, the socket may fail to report: the last values are
            // kept.
            if let Some(socket) = queue.statistics() {
                last.rx_dropped = socket.rx_dropped;
                last.rx_ring_full = socket.rx_ring_full.unwrap_or(0);
                last.fill_ring_empty = socket.rx_fill_ring_empty_descs.unwrap_or(0);
                last.rx_invalid = socket.rx_invalid_descs;
                last.tx_invalid = socket.tx_invalid_descs;
            }
            total.rx_dropped += last.rx_dropped;
            total.rx_ring_full += last.rx_ring_full;
            total.fill_ring_empty += last.fill_ring_empty;
            total.rx_invalid += last.rx_invalid + load(&counts.malformed);
            total.tx_invalid += last.tx_invalid;
            total.sent_in_place += load(&counts.sent_in_place);
            total.sent_by_copy += load(&counts.sent_by_copy);
            total.sent_gathered += load(&counts.sent_gathered);
            total.bytes_copied += load(&counts.bytes_copied);
            total.tx_full += load(&counts.tx_full);
            total.tx_refused += load(&counts.tx_refused);
            total.tx_wakeups += load(&counts.tx_wakeups);
            total.rx_wakeups += load(&counts.rx_wakeups);
        }
        total
    }
}

impl fmt::Display for XdpPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = if self.is_zero_copy() { "zero copy" } else { "copy" };
        let several = if self.several { ", multi-buffer" } else { "" };
        write!(
            formatter,
            "{} ({}, {}, {copy}{several})",
            self.shared.facts.name, self.driver, self.slot
        )
    }
}

impl Port for XdpPort {
    fn name(&self) -> &str {
        &self.shared.facts.name
    }

    fn capabilities(&self) -> Capabilities {
        let features = FeatureSet::NONE
            .with(Feature::ScatterGather)
            .with(Feature::GenericReceiveOffload)
            .with(Feature::RxUdpGroForwarding)
            .with(Feature::LargeReceiveOffload)
            .with(Feature::RxChecksumming)
            .set(Feature::ReceiveHashing, self.shared.facts.hash);
        Capabilities { features, gso: GsoSupport::NONE, max_slices: MAX_SLICES }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.hardware_address
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        if std::mem::replace(&mut self.are_receivers_out, true) {
            return Vec::new();
        }
        let end = |queue: &Arc<XdpQueue>| {
            Box::new(XdpReceiver::new(Arc::clone(&self.shared), Arc::clone(queue)))
                as Box<dyn Receive>
        };
        self.shared.queues.iter().map(end).collect()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        let place = self.next_sender % self.shared.queues.len();
        self.next_sender += 1;
        Ok(Box::new(XdpSender::new(
            Arc::clone(&self.shared),
            Arc::clone(&self.shared.queues[place]),
            place as u16,
        )))
    }

    fn state(&mut self) -> PortState {
        self.shared.state()
    }

    fn counters(&mut self) -> PortCounters {
        let statistics = self.statistics();
        PortCounters {
            rx_dropped: statistics.rx_dropped + statistics.rx_ring_full,
            rx_errors: statistics.rx_invalid,
            tx_full: statistics.tx_full,
            tx_refused: statistics.tx_refused + statistics.tx_invalid,
        }
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        self.statistics();
        self.statistics.iter().map(|queue| queue.rx_dropped + queue.rx_ring_full).collect()
    }
}

const _: () =
    assert!(MAX_CHUNKS as u32 * 2048 > ipv4::HEADER_LENGTH as u32 + 9000 && HEADROOM < 2048);
