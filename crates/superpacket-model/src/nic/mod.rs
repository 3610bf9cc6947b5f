//! A model of a network card that treats packets as drivers and devices of 2005 to 2010 did.
//!
//! `nic:SETTING=VALUE,...@PORT` wraps a port: received packets look as this card would have
//! delivered them, and sent packets are treated as this card would have treated them.
//! `nic:SETTING=VALUE,...,link=NAME` is one end of the [memory link](crate::memory) of that name
//! (default `nic`). [`pair`] returns a card and the other end of its wire in code. The model uses
//! no clock and no random numbers: the same packets in the same polls give the same results.
//!
//! | setting | values | default |
//! |---|---|---|
//! | `page` | receive memory: pages of `4k`, `8k`, `16k` or `32k` that frames share and span, or `linear`: one buffer per frame | `4k` |
//! | `headroom` | free bytes before a frame in its buffer: 0 to 256 | 0 |
//! | `copy` | number of first bytes of a frame that are copied into a separate small buffer: 0 to 256 | 0 |
//! | `csum` | report on received checksums: `none`, `verified` (TCP, UDP and GRE, tunnels included), `complete` (the sum of all bytes behind the Ethernet header) | `verified` |
//! | `vlan` | the outermost VLAN tag: `strip` (moved from the frame to its metadata) or `keep` | `strip` |
//! | `pad` | padding of received frames shorter than 60 bytes: `off`, `on` (zeros), `garbage` | `off` |
//! | `queues` | number of receive queues, 1 to 128; the Toeplitz hash of addresses and ports selects one through a table of 128 entries | 1 |
//! | `hash` | whether the hash is reported: `on`, `off` | `on` |
//! | `ring` | capacity of a queue in frames | 256 |
//! | `full` | frames for a full queue: `drop` (counted), or `wait` in the wrapped port | `wait` around a port, `drop` in memory |
//! | `mtu` | maximum length of an IP packet in bytes, in both directions: 68 to 65000 | the wrapped port's, or 1500 |
//! | `sg`, `tx` | whether it sends frames in several buffers, and whether it fills in checksums: `on`, `off` | `on` |
//! | `tso` | segmentation of TCP super-packets: `off`, `64k`, or the maximum TCP payload in bytes, such as `15928` | `64k` |
//! | `uso` | segmentation of UDP super-packets: `on`, `off` | `on` |
//! | `tunnels` | segmentation of super-packets in UDP tunnels: `on`, `off` | `off` |
//! | `wire` | `on`: only wire frames pass between the card and the wrapped port; `off`: super-packets and partial checksums pass unchanged | `on` |
//!
//! With `wire=on`, packets from the wrapped port are first turned into wire frames: super-packets
//! are segmented, partial checksums are filled in, and stripped tags are put back. Then the other
//! settings apply. Sent super-packets are segmented by the card, like by its hardware, and the
//! wrapped port gets frames with complete checksums.

mod arrival;
mod checksum;
mod counters;
mod front;
mod pages;
mod port;
mod receive;
mod settings;
mod transmit;

pub use counters::{NicCounters, NicMonitor};
pub use port::{NicPort, pair};
pub use settings::{NicSettings, Padding, PageSize, RingFull, RxSums, TsoLimit};

use crate::memory::{self, MemorySettings};
use superpacket_port::{Port, PortError, PortSpec, SpecError};

/// Name of the memory link if the port string gives none.
const DEFAULT_LINK: &str = "nic";

/// Opens a model NIC. `open` opens the port that it wraps.
pub(super) fn open(
    spec: &PortSpec,
    open: impl FnOnce(&PortSpec) -> Result<Box<dyn Port>, PortError>,
) -> Result<Box<dyn Port>, PortError> {
    let options = spec.options();
    let settings = NicSettings::from_options(options, spec.inner().is_some())?;
    let inner = match spec.inner() {
        Some(inner) => open(inner)?,
        None => Box::new(memory::join(
            options.get("link").unwrap_or(DEFAULT_LINK),
            spec.name(),
            &wire(&settings),
        )?),
    };
    Ok(Box::new(NicPort::new(spec.name(), &settings, inner)?))
}

/// Checks the options of a model NIC.
pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
    NicSettings::from_options(spec.options(), spec.inner().is_some()).map(drop)
}

/// Returns the settings of the card's end of a memory link. The card applies its own limits.
fn wire(settings: &NicSettings) -> MemorySettings {
    // Frames that arrive between two polls wait in the link until the card moves them to its ring.
    MemorySettings {
        slots: (settings.ring * usize::from(settings.queues) * 4)
            .clamp(4096, MemorySettings::MAX_SLOTS),
        ..MemorySettings::default()
    }
}

#[cfg(test)]
mod tests;
