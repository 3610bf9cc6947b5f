//! The bridge between a sender's stack and model NICs, on one thread in memory. Without kernel and
//! clock, every run gives the same counts.

use std::hash::Hasher;
use std::time::Duration;

use superpacket::aggregate::HashKey;
use superpacket::packet::{Layer, RxChecksum};
use superpacket_bridge::ThreadlessBridge;
use superpacket_model::memory::{self, MemoryPort, MemorySettings};
use superpacket_model::nic::{self, NicCounters, NicMonitor, NicSettings};
use superpacket_port::features::Feature;
use superpacket_port::{Outgoing, Port, Receive, Transmit, TxBatch};
use twox_hash::XxHash3_64;

use super::counting_port::{CountingPort, SentCounter, SentCounts};
use super::stack::SenderStack;
use super::unexpected_error;
use crate::error::LabError;
use crate::experiment::testbed;

/// Number of packets that the sender offers per wake-up of the bridge: the limit of a driver's poll
/// (`NAPI_POLL_WEIGHT`).
const POLL_SIZE: usize = 64;

/// Capacity of a wire in frames; exceeds the segments of [`POLL_SIZE`] super-packets.
const WIRE_CAPACITY: usize = 4096;

/// Counters of a stream through the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForwardingCounts {
    /// Packets of the sender that the bridge handled. Each costs one header parse, one learned
    /// address and one look-up.
    pub(crate) handled: u64,
    /// Wake-ups of the bridge at which it found packets and emptied the sender's ring.
    pub(crate) wakes: u64,
    /// Counters of each card's output.
    pub(crate) exits: Vec<CardOutput>,
}

/// Counters of a card's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardOutput {
    /// Segments that the engine produced for the card.
    pub(crate) segments: u64,
    /// Unsegmented packets whose checksum the engine filled in.
    pub(crate) filled: u64,
    /// Counters of the packets that the bridge gave to the card.
    pub(crate) sent: SentCounts,
    /// The card's own counters.
    pub(crate) card: NicCounters,
    /// Number of frames that the card put on the wire.
    pub(crate) frames: u64,
    pub(crate) digest: u64,
}

/// Sends a stack's packets through a bridge to hosts 2, 3, ... behind these cards. `inspect`
/// receives each frame on their wires, with the index of the card.
///
/// # Errors
/// [`LabError::System`] if the process has no more file descriptors.
pub(crate) fn forward(
    mut stack: SenderStack,
    cards: &[NicSettings],
    mut inspect: impl FnMut(usize, &[u8]),
) -> Result<ForwardingCounts, LabError> {
    let mut bridge = ThreadlessBridge::new(64, Duration::from_secs(3600), HashKey::new(4));
    let settings = MemorySettings { slots: POLL_SIZE, ..MemorySettings::default() };
    let (host, port) = memory::pair(&MemorySettings::default(), &settings)
        .map_err(|error| unexpected_error("a link in memory", &error))?;
    let mut sender = HostLink::new(host)?;
    join(&mut bridge, Box::new(port))?;
    let mut exits = cards
        .iter()
        .map(|card| ModelCard::new(&mut bridge, card))
        .collect::<Result<Vec<_>, _>>()?;
    // Each host sends one frame, so that the bridge learns its address.
    sender.announce(1);
    run_round(&mut bridge)?;
    for (number, exit) in (2..).zip(&mut exits) {
        exit.wire.announce(number);
        run_round(&mut bridge)?;
    }
    exits.iter_mut().for_each(|exit| exit.start());
    sender.drain(|_| ());

    let before = bridge.stats()[0].rx_packets;
    let mut wakes = 0;
    loop {
        while sender.batch.frames().len() < POLL_SIZE
            && stack.push(&mut sender.outgoing, &mut sender.batch)
        {}
        if sender.send() == 0 {
            break;
        }
        wakes += 1;
        while run_round(&mut bridge)? != 0 {}
        for (number, exit) in exits.iter_mut().enumerate() {
            exit.take(|frame| inspect(number, frame));
        }
    }
    let stats = bridge.stats();
    let exits = exits
        .into_iter()
        .zip(&stats[1..])
        .map(|(exit, stats)| exit.end(stats.segments, stats.checksummed))
        .collect();
    Ok(ForwardingCounts { handled: stats[0].rx_packets - before, wakes, exits })
}

/// Runs one round of the bridge, and returns the number of packets handled.
fn run_round(bridge: &mut ThreadlessBridge) -> Result<usize, LabError> {
    bridge.round(0).map_err(|error| unexpected_error("a port in memory", &error))
}

/// Adds a port to the bridge, without GRO, which would merge the segments again.
fn join(bridge: &mut ThreadlessBridge, port: Box<dyn Port>) -> Result<(), LabError> {
    let mut settings = testbed::port("memory:model")?;
    settings.features = settings.features.without(Feature::GenericReceiveOffload);
    bridge.join(settings, port).map_err(|error| unexpected_error("a port in memory", &error))
}

/// A host's end of a link in memory, with its pending packets.
#[derive(Debug)]
struct HostLink {
    transmit: Box<dyn Transmit>,
    receive: Box<dyn Receive>,
    outgoing: Outgoing,
    batch: TxBatch,
    _port: MemoryPort,
}

impl HostLink {
    fn new(mut port: MemoryPort) -> Result<Self, LabError> {
        let transmit =
            port.transmitter().map_err(|error| unexpected_error("a link in memory", &error))?;
        let receive = port
            .receivers()
            .pop()
            .ok_or_else(|| unexpected_error("a link in memory", &std::fmt::Error))?;
        Ok(Self {
            transmit,
            receive,
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
            _port: port,
        })
    }

    /// Sends the pending packets, and returns their number.
    fn send(&mut self) -> usize {
        let sent = self.transmit.transmit(&self.outgoing, &self.batch, 0).sent;
        self.batch.clear();
        self.outgoing.clear();
        sent
    }

    /// Broadcasts a frame from host `number`, so that the bridge learns the host's address.
    fn announce(&mut self, number: u8) {
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, number], &[0x88, 0xb5], &[0; 46]].concat();
        self.batch.push_bytes(&mut self.outgoing, &frame, RxChecksum::None, None, Layer::Ethernet);
        self.send();
    }

    /// Receives all waiting frames, and calls `inspect` with each.
    fn drain(&mut self, mut inspect: impl FnMut(&[u8])) {
        let mut packets = Vec::new();
        while self.receive.poll(&mut packets, POLL_SIZE).is_ok_and(|count| count != 0) {
            for packet in packets.drain(..) {
                packet.buffers().for_each(|buffer| inspect(buffer.bytes()));
            }
            self.receive.give_back();
        }
    }
}

/// A model NIC, and the host at the other end of its wire.
struct ModelCard {
    wire: HostLink,
    monitor: NicMonitor,
    counter: SentCounter,
    before: NicCounters,
    frames: u64,
    digest: XxHash3_64,
}

impl ModelCard {
    /// Creates a card, and a port in front of it that counts the packets given to it.
    fn create(settings: &NicSettings) -> Result<(CountingPort, Self), LabError> {
        let wire = MemorySettings { slots: WIRE_CAPACITY, ..MemorySettings::default() };
        let (card, host) =
            nic::pair(settings, &wire).map_err(|error| unexpected_error("a model NIC", &error))?;
        let monitor = card.monitor();
        let (counted, counter) = CountingPort::new(Box::new(card));
        let card = Self {
            wire: HostLink::new(host)?,
            monitor,
            counter,
            before: NicCounters::default(),
            frames: 0,
            digest: XxHash3_64::new(),
        };
        Ok((counted, card))
    }

    /// Creates a card and adds it to the bridge.
    fn new(bridge: &mut ThreadlessBridge, settings: &NicSettings) -> Result<Self, LabError> {
        let (counted, card) = Self::create(settings)?;
        join(bridge, Box::new(counted))?;
        Ok(card)
    }

    /// Starts counting; discards earlier frames and counts.
    fn start(&mut self) {
        self.wire.drain(|_| ());
        self.counter.take();
        self.before = self.monitor.counters();
    }

    /// Receives and counts the waiting frames, and calls `inspect` with each.
    fn take(&mut self, mut inspect: impl FnMut(&[u8])) {
        let Self { wire, frames, digest, .. } = self;
        wire.drain(|frame| {
            *frames += 1;
            digest.write(frame);
            inspect(frame);
        });
    }

    fn end(self, segments: u64, filled: u64) -> CardOutput {
        let (now, before) = (self.monitor.counters(), self.before);
        let card = NicCounters {
            tx_frames: now.tx_frames - before.tx_frames,
            tx_bytes: now.tx_bytes - before.tx_bytes,
            ..now
        };
        CardOutput {
            segments,
            filled,
            sent: self.counter.take(),
            card,
            frames: self.frames,
            digest: self.digest.finish(),
        }
    }
}

/// Sends a stack's packets directly to a card, at most [`POLL_SIZE`] packets per call. `inspect`
/// receives each frame on the wire.
///
/// # Errors
/// [`LabError::System`] if the process has no more file descriptors.
pub(crate) fn send(
    mut stack: SenderStack,
    settings: &NicSettings,
    mut inspect: impl FnMut(&[u8]),
) -> Result<CardOutput, LabError> {
    let (mut counted, mut card) = ModelCard::create(settings)?;
    let mut transmit =
        counted.transmitter().map_err(|error| unexpected_error("a model NIC", &error))?;
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    loop {
        while batch.frames().len() < POLL_SIZE && stack.push(&mut outgoing, &mut batch) {}
        if batch.frames().is_empty() {
            return Ok(card.end(0, 0));
        }
        let progress = transmit.transmit(&outgoing, &batch, 0);
        if let Some(stop) = progress.stopped {
            return Err(LabError::system(
                "a model NIC",
                std::io::Error::other(format!("it stopped sending: {stop:?}")),
            ));
        }
        card.take(&mut inspect);
        batch.clear();
        outgoing.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segmentation::stack::StackProtocol;
    use superpacket_traffic::check::Expect;

    /// Returns every frame on the wire, so that a test can check it without the engine's code.
    fn frames(
        transport: StackProtocol,
        card: &NicSettings,
        whole: bool,
    ) -> (Vec<Vec<u8>>, ForwardingCounts) {
        let largest = if whole { transport.longest() } else { 0 };
        let mut frames = Vec::new();
        let stack = SenderStack::new(transport, 2, 200_000, largest);
        let counts = forward(stack, &[*card], |_, frame| frames.push(frame.to_vec()))
            .expect("memory is there");
        (frames, counts)
    }

    #[test]
    fn the_same_frames_arrive_wherever_they_are_cut() {
        for transport in StackProtocol::ALL {
            let card =
                NicSettings { tso: nic::TsoLimit::Off, uso: false, ..NicSettings::default() };
            for card in [
                card,
                NicSettings { scatter_gather: false, ..card },
                NicSettings { checksums: false, ..card },
                NicSettings::default(),
            ] {
                let (before, counts) = frames(transport, &card, false);
                let (after, late) = frames(transport, &card, true);
                assert_eq!(
                    before.len(),
                    200_000usize.div_ceil(transport.segment_size()),
                    "{transport:?}"
                );
                assert!(before == after, "{transport:?}, {card:?}");
                assert_eq!(counts.exits[0].digest, late.exits[0].digest);
                assert_eq!(
                    (counts.handled, late.handled),
                    (before.len() as u64, 200_000u64.div_ceil(transport.longest() as u64))
                );
                for frame in &after {
                    let checked = superpacket_traffic::check::frame(frame, &Expect::default());
                    assert!(checked.is_ok(), "{transport:?}: {checked:?}");
                }
            }
        }
    }
}
