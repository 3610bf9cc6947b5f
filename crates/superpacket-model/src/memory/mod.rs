//! Links in memory: pairs of ports in one process. Each port receives the packets that the other
//! sends.
//!
//! `memory:NAME` opens one end of a link. The second port with the same name is the other end;
//! [`pair`] returns both ends in code. Packets keep their metadata: super-packets stay whole, and
//! partial checksums stay partial. The links use no clock and no random numbers, so results are
//! reproducible.
//!
//! | option | meaning for this end | default |
//! |---|---|---|
//! | `slots=N` | capacity of each receive queue, in packets | 1024 |
//! | `queues=N` | number of receive queues; the sender distributes flows over them by Toeplitz hash | 1 |
//! | `full=stop`, `full=drop` | when a receive queue is full: `stop` stops the sender, which may try again; `drop` drops the packet and counts it in `rx_dropped` | `stop` |
//! | `mtu=N` | maximum length of a sent IP packet, in bytes; 0: no limit | 0 |
//! | `tx=on`, `sg=on`, `tso=on`, `uso=on` (or `off`) | whether it can send partial checksums, packets in several buffers, TCP super-packets and UDP super-packets | `on` |
//!
//! An end is [down](superpacket_port::LinkState::Down) while the other end is not open. Tests set
//! the state of a link with [`LinkControl`].

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

/// Opens one end of the memory link that a port string names.
pub(super) fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    let settings = MemorySettings::from_options(spec.options())?;
    Ok(Box::new(port::join(spec.device(), spec.name(), &settings)?))
}

/// Checks the options of a port string.
pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
    MemorySettings::from_options(spec.options()).map(drop)
}

pub(super) use link::lock;
pub(super) use port::join;

#[cfg(test)]
mod tests;
