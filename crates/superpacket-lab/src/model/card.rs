//! Reception on the model NIC, with counters of all work that the card and its host do.

use std::io;

use superpacket::aggregate::{Aggregator, HashKey, Policy, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::super_packet::SuperPacket;
use superpacket_model::memory::MemorySettings;
use superpacket_model::nic::{NicSettings, pair};
use superpacket_port::{Buffer, Outgoing, Port, PortError, TxBatch};

use crate::error::LabError;

/// Counters of received frames and the work they caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardCounts {
    /// Number of frames received.
    pub(crate) frames: u64,
    /// Number of polls that returned frames.
    pub(crate) polls: u64,
    /// Headers parsed: once by the driver for each packet to be merged, once by the host's
    /// protocols for each delivered packet.
    pub(crate) parsed: u64,
    /// Number of packets delivered to the host.
    pub(crate) delivered: u64,
    /// Number of contiguous pieces of memory in the delivered packets: whole buffers or ranges of
    /// them.
    pub(crate) pieces: u64,
    /// Number of pages, or of linear buffers, that the card filled.
    pub(crate) pages: u64,
    /// Number of checksums that the card verified.
    pub(crate) checksums: u64,
    /// Bytes copied after the card had written them to memory.
    pub(crate) copied: u64,
    /// Number of bytes in the delivered packets.
    pub(crate) bytes: u64,
}

/// Receives frames with a model NIC, whose driver aggregates them if there is a policy. Poll number
/// `i` receives as many frames as element `i` of `arrivals`.
///
/// # Errors
///
/// [`LabError::System`] for an invalid setting, or if a frame does not fit the wire.
pub(crate) fn receive(
    settings: &NicSettings,
    policy: Option<Policy>,
    mut frames: impl Iterator<Item = Vec<u8>>,
    arrivals: impl IntoIterator<Item = usize>,
) -> Result<CardCounts, LabError> {
    let failed = |error: PortError| {
        LabError::system(error.to_string(), io::Error::other("the model of a card"))
    };
    let memory = MemorySettings { mtu: NicSettings::MAX_MTU, ..MemorySettings::default() };
    let (mut card, mut wire) = pair(settings, &memory).map_err(failed)?;
    let mut transmit = wire.transmitter().map_err(failed)?;
    let mut receivers = card.receivers();
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    let mut packets = Vec::new();
    let mut aggregator =
        Aggregator::new(policy.unwrap_or(Policy::gro().with_partial_checksums()), HashKey::new(1));
    let mut counts = CardCounts::default();
    for arrived in arrivals {
        for frame in frames.by_ref().take(arrived) {
            batch.push_bytes(&mut outgoing, &frame, RxChecksum::None, None, Layer::Ethernet);
        }
        let sent = transmit.transmit(&outgoing, &batch, 0).sent;
        if sent != batch.frames().len() {
            return Err(LabError::system(
                format!("{sent} of {} frames", batch.frames().len()),
                io::Error::other("the wire is full"),
            ));
        }
        batch.clear();
        outgoing.clear();
        for receive in &mut receivers {
            counts.polls += u64::from(receive.poll(&mut packets, sent).map_err(failed)? != 0);
            let copies = aggregator.policy().storage == Storage::Linear && policy.is_some();
            // A driver that does not merge parses no headers.
            counts.parsed += if policy.is_some() { packets.len() as u64 } else { 0 };
            let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |packet| {
                counts.delivered += 1;
                counts.parsed += 1;
                counts.bytes += packet.length() as u64;
                counts.pieces += packet.pieces().len() as u64;
                // Pieces without a buffer of the card were copied.
                let own = packet
                    .pieces()
                    .iter()
                    .filter(|piece| !piece.has_buffer())
                    .map(|piece| piece.length() as u64)
                    .sum::<u64>();
                counts.copied += if copies { own } else { 0 };
            };
            match policy {
                Some(_) => aggregator.receive_batch(&mut packets, 0, sink),
                None => packets.drain(..).for_each(|packet| aggregator.bypass(packet, sink)),
            }
            aggregator.poll_end(0, sink);
            receive.give_back();
        }
    }
    let seen = card.monitor().counters();
    (counts.frames, counts.pages, counts.checksums) =
        (seen.rx_frames, seen.rx_pages, seen.sums_verified);
    if seen.rx_delivered != seen.rx_frames || frames.next().is_some() {
        return Err(LabError::system("the model of a card", io::Error::other("frames were lost")));
    }
    Ok(counts)
}
