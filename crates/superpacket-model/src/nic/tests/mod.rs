//! Tests of each setting of a model NIC, and of a NIC with an aggregator behind it.

mod live;
mod merging;
mod receiving;
mod rings;
mod sending;
mod strings;

use super::{NicPort, NicSettings, pair};
use crate::memory::{MemoryPort, MemorySettings};
use superpacket_port::{Receive, Transmit};
use superpacket_traffic::frame::Frame;

/// A card with one queue, connected to the other end of its wire.
struct Bench {
    card: NicPort,
    card_in: Box<dyn Receive>,
    card_out: Box<dyn Transmit>,
    /// The port at the other end of the wire.
    other: MemoryPort,
    wire_in: Box<dyn Receive>,
    wire_out: Box<dyn Transmit>,
}

impl Bench {
    fn new(settings: &NicSettings) -> Self {
        Bench::with(settings, &MemorySettings::default())
    }

    fn with(settings: &NicSettings, other: &MemorySettings) -> Self {
        let (mut card, mut other) = pair(settings, other).expect("opens");
        let (card_in, card_out) = crate::fixture::ends(&mut card);
        let (wire_in, wire_out) = crate::fixture::ends(&mut other);
        Bench { card, card_in, card_out, other, wire_in, wire_out }
    }
}

/// Returns a frame of the TCP connection with this source port.
fn of_flow(port: u16, payload: usize) -> Frame {
    Frame::tcp4(1, payload).with_tcp(|tcp| tcp.source_port = port)
}
