//! The bridge between a sender's stack and model NICs, in memory: one thread, no kernel, no clock.
//! What is counted is the same in every run.

use std::hash::Hasher;
use std::time::Duration;

use superpacket::aggregate::HashKey;
use superpacket::packet::{Layer, RxChecksum};
use superpacket_bridge::Forwarder;
use superpacket_bridge::settings::PortSettings;
use superpacket_model::memory::{self, MemoryPort, MemorySettings};
use superpacket_model::nic::{self, NicCounters, NicMonitor, NicSettings};
use superpacket_port::features::Feature;
use superpacket_port::{Outgoing, Port, Receive, Transmit, TxBatch};
use twox_hash::XxHash3_64;

use super::counted::{Counted, Sent, Tally};
use super::refused;
use super::stack::Stack;
use crate::error::LabError;

/// Packets that wait at the bridge when it is woken: what a driver's poll takes
/// (`NAPI_POLL_WEIGHT`).
const RING: usize = 64;

/// Frames that a wire holds: more than [`RING`] super-packets give.
const WIRE: usize = 4096;

/// What went through the bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets of the sender that the bridge handled: as often headers were read, an address was
    /// learned and another looked up.
    pub(crate) handled: u64,
    /// Times that the bridge was woken, found packets, and emptied the sender's ring.
    pub(crate) wakes: u64,
    /// What left, by card.
    pub(crate) exits: Vec<Exit>,
}

/// What left by one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Segments that the engine cut for it.
    pub(crate) segments: u64,
    /// Packets whose checksum the engine filled in without cutting them.
    pub(crate) filled: u64,
    /// What the card was given.
    pub(crate) sent: Sent,
    /// What the card did.
    pub(crate) card: NicCounters,
    /// Frames on the wire, and XXH3 of all their bytes.
    pub(crate) frames: u64,
    pub(crate) digest: u64,
}

/// Sends what a stack sends through a bridge to hosts 2, 3, ... behind these cards; `look` is shown
/// each frame on their wires.
///
/// # Errors
/// [`LabError::System`] if the system gives no more file descriptors.
pub(crate) fn forward(
    mut stack: Stack,
    cards: &[NicSettings],
    mut look: impl FnMut(usize, &[u8]),
) -> Result<Counts, LabError> {
    let mut bridge = Forwarder::new(64, Duration::from_secs(3600), HashKey::new(4));
    let settings = MemorySettings { slots: RING, ..MemorySettings::default() };
    let (host, port) = memory::pair(&MemorySettings::default(), &settings)
        .map_err(|error| refused("a link in memory", &error))?;
    let mut sender = Wire::new(host)?;
    join(&mut bridge, Box::new(port))?;
    let mut exits =
        cards.iter().map(|card| Far::new(&mut bridge, card)).collect::<Result<Vec<_>, _>>()?;
    // Everybody says once where he is.
    sender.hello(1);
    round(&mut bridge)?;
    for (number, exit) in (2..).zip(&mut exits) {
        exit.wire.hello(number);
        round(&mut bridge)?;
    }
    exits.iter_mut().for_each(|exit| exit.start());
    sender.drain(|_| ());

    let before = bridge.stats()[0].rx_packets;
    let mut wakes = 0;
    loop {
        while sender.batch.frames().len() < RING
            && stack.push(&mut sender.outgoing, &mut sender.batch)
        {}
        if sender.send() == 0 {
            break;
        }
        wakes += 1;
        while round(&mut bridge)? != 0 {}
        for (number, exit) in exits.iter_mut().enumerate() {
            exit.take(|frame| look(number, frame));
        }
    }
    let stats = bridge.stats();
    let exits = exits
        .into_iter()
        .zip(&stats[1..])
        .map(|(exit, stats)| exit.end(stats.segments, stats.checksummed))
        .collect();
    Ok(Counts { handled: stats[0].rx_packets - before, wakes, exits })
}

/// One round of the bridge; how many packets it took.
fn round(bridge: &mut Forwarder) -> Result<usize, LabError> {
    bridge.round(0).map_err(|error| refused("a port in memory", &error))
}

/// Joins a port without aggregation: it would join again what was cut.
fn join(bridge: &mut Forwarder, port: Box<dyn Port>) -> Result<(), LabError> {
    let mut settings = PortSettings::new(
        "memory:model".parse().map_err(|error| refused("a port string", &error))?,
    );
    settings.features = settings.features.without(Feature::GenericReceiveOffload);
    bridge.join(settings, port).map_err(|error| refused("a port in memory", &error))
}

/// A host's end of a wire.
#[derive(Debug)]
struct Wire {
    transmit: Box<dyn Transmit>,
    receive: Box<dyn Receive>,
    outgoing: Outgoing,
    batch: TxBatch,
    _port: MemoryPort,
}

impl Wire {
    fn new(mut port: MemoryPort) -> Result<Self, LabError> {
        let transmit = port.transmitter().map_err(|error| refused("a link in memory", &error))?;
        let receive =
            port.receivers().pop().ok_or_else(|| refused("a link in memory", &std::fmt::Error))?;
        Ok(Self {
            transmit,
            receive,
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
            _port: port,
        })
    }

    /// Sends what was pushed; how many packets that were.
    fn send(&mut self) -> usize {
        let sent = self.transmit.transmit(&self.outgoing, &self.batch, 0).sent;
        self.batch.clear();
        self.outgoing.clear();
        sent
    }

    /// Host `number` says where it is, to all.
    fn hello(&mut self, number: u8) {
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, number], &[0x88, 0xb5], &[0; 46]].concat();
        self.batch.push_bytes(&mut self.outgoing, &frame, RxChecksum::None, None, Layer::Ethernet);
        self.send();
    }

    /// Takes all that came.
    fn drain(&mut self, mut look: impl FnMut(&[u8])) {
        let mut packets = Vec::new();
        while self.receive.poll(&mut packets, RING).is_ok_and(|count| count != 0) {
            for packet in packets.drain(..) {
                packet.buffers().for_each(|buffer| look(buffer.bytes()));
            }
            self.receive.give_back();
        }
    }
}

/// A card of the bridge, and the host at the other end of its wire.
struct Far {
    wire: Wire,
    monitor: NicMonitor,
    tally: Tally,
    before: NicCounters,
    frames: u64,
    digest: XxHash3_64,
}

/// A card, and what reads its counters.
fn card(settings: &NicSettings) -> Result<(Counted, Tally, NicMonitor, Wire), LabError> {
    let wire = MemorySettings { slots: WIRE, ..MemorySettings::default() };
    let (card, host) =
        nic::pair(settings, &wire).map_err(|error| refused("a model NIC", &error))?;
    let monitor = card.monitor();
    let (counted, tally) = Counted::new(Box::new(card));
    Ok((counted, tally, monitor, Wire::new(host)?))
}

impl Far {
    /// Joins a card to the bridge.
    fn new(bridge: &mut Forwarder, settings: &NicSettings) -> Result<Self, LabError> {
        let (counted, tally, monitor, wire) = card(settings)?;
        join(bridge, Box::new(counted))?;
        Ok(Self {
            wire,
            monitor,
            tally,
            before: NicCounters::default(),
            frames: 0,
            digest: XxHash3_64::new(),
        })
    }

    /// What comes from now on counts.
    fn start(&mut self) {
        self.wire.drain(|_| ());
        self.tally.take();
        self.before = self.monitor.counters();
    }

    /// Takes what came.
    fn take(&mut self, mut look: impl FnMut(&[u8])) {
        let Self { wire, frames, digest, .. } = self;
        wire.drain(|frame| {
            *frames += 1;
            digest.write(frame);
            look(frame);
        });
    }

    fn end(self, segments: u64, filled: u64) -> Exit {
        let (now, before) = (self.monitor.counters(), self.before);
        let card = NicCounters {
            tx_frames: now.tx_frames - before.tx_frames,
            tx_bytes: now.tx_bytes - before.tx_bytes,
            ..now
        };
        Exit {
            segments,
            filled,
            sent: self.tally.take(),
            card,
            frames: self.frames,
            digest: self.digest.finish(),
        }
    }
}

/// Sends what a stack sends by a card of its own, `ring` packets a call at most; `look` is shown
/// each frame on the wire.
///
/// # Errors
/// [`LabError::System`] if the system gives no more file descriptors.
pub(crate) fn send(
    mut stack: Stack,
    settings: &NicSettings,
    mut look: impl FnMut(&[u8]),
) -> Result<Exit, LabError> {
    let (mut counted, tally, monitor, wire) = card(settings)?;
    let mut transmit = counted.transmitter().map_err(|error| refused("a model NIC", &error))?;
    let mut far = Far {
        wire,
        monitor,
        tally,
        before: NicCounters::default(),
        frames: 0,
        digest: XxHash3_64::new(),
    };
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    loop {
        while batch.frames().len() < RING && stack.push(&mut outgoing, &mut batch) {}
        if batch.frames().is_empty() {
            return Ok(far.end(0, 0));
        }
        let progress = transmit.transmit(&outgoing, &batch, 0);
        if let Some(stop) = progress.stopped {
            return Err(LabError::system(
                "a model NIC",
                std::io::Error::other(format!("it stopped sending: {stop:?}")),
            ));
        }
        far.take(&mut look);
        batch.clear();
        outgoing.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::segmentation::stack::Transport;
    use superpacket_traffic::check::Expect;

    /// Every frame on the wires, judged by what knows nothing of the engine.
    fn frames(transport: Transport, card: &NicSettings, whole: bool) -> (Vec<Vec<u8>>, Counts) {
        let largest = if whole { transport.longest() } else { 0 };
        let mut frames = Vec::new();
        let stack = Stack::new(transport, 2, 200_000, largest);
        let counts = forward(stack, &[*card], |_, frame| frames.push(frame.to_vec()))
            .expect("memory is there");
        (frames, counts)
    }

    #[test]
    fn the_same_frames_arrive_wherever_they_are_cut() {
        for transport in Transport::ALL {
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
