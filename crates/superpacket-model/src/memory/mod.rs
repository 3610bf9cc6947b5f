//! Links in memory: two ports of this process, of which each receives what the other sends.
//!
//! `memory:NAME` opens one end, the second port of the same name is the other; [`pair`] gives both
//! in code. Packets pass with all that is known of them: super-packets whole, partial checksums
//! partial. Nothing depends on a clock or on chance, so tests and the lab use these links as their
//! wires.
//!
//! | option | of this end | default |
//! |---|---|---|
//! | `slots=N` | packets that each of its receive queues holds | 1024 |
//! | `queues=N` | receive queues; the sender spreads flows over them by their Toeplitz hash | 1 |
//! | `full=stop`, `full=drop` | where a receive queue is full: its sender is stopped and may try again, or the packet is dropped and counted (`rx_dropped`) | `stop` |
//! | `mtu=N` | the longest IP packet that it sends, in bytes; 0: no limit | 0 |
//! | `tx=on`, `sg=on`, `tso=on`, `uso=on` (or `off`) | it sends partial checksums, packets in several pieces, TCP and UDP super-packets | `on` |
//!
//! An end whose other end is not open is [down](superpacket_port::LinkState::Down), and so is
//! its link when a test says so ([`LinkControl`]).

mod link;
mod port;
mod receive;
mod settings;
mod store;
mod transmit;

pub use link::LinkControl;
pub use port::{MemoryPort, pair};
pub use settings::{MemorySettings, WhenFull};

use superpacket_port::{Port, PortError, PortSpec, SpecError};

/// Opens one end of a link.
pub(super) fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    let settings = MemorySettings::from_options(spec.options())?;
    Ok(Box::new(port::join(spec.device(), spec.name(), &settings)?))
}

/// Reads the options of a port string.
pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
    MemorySettings::from_options(spec.options()).map(drop)
}

pub(super) use link::lock;
pub(super) use port::join;

#[cfg(test)]
mod tests;
