//! A model of a network card: what drivers and devices of 2005 to 2010 did to packets, by settings.
//!
//! `nic:SETTING=VALUE,...@PORT` wraps a port: what that receives is presented as the card would
//! have presented it, what is sent is done what the card would have done.
//! `nic:SETTING=VALUE,...,link=NAME` is one end of the [memory link](crate::memory) of that name
//! (`nic` if none is given), and [`pair`] gives a card and the other end of its wire in code. No
//! clock and no chance is in it: the same packets in the same polls give the same results.
//!
//! | setting | values | default |
//! |---|---|---|
//! | `page` | what it receives into: `4k`, `8k`, `16k`, `32k` pages that frames share and span, or `linear`: a buffer a frame | `4k` |
//! | `headroom` | bytes left free before a frame in its buffer: 0 to 256 | 0 |
//! | `copy` | the first bytes of a frame that go into a small buffer of their own: 0 to 256 | 0 |
//! | `csum` | what it says of checksums: `none`, `verified` (TCP, UDP and GRE, tunnels included), `complete` (the sum of all behind the Ethernet header) | `verified` |
//! | `vlan` | the outermost tag: `strip` (it is told apart) or `keep` | `strip` |
//! | `pad` | frames shorter than 60 bytes arrive padded: `off`, `on` (with zeros), `garbage` | `off` |
//! | `queues` | receive queues, 1 to 128: chosen by the Toeplitz hash of addresses and ports, through a table of 128 entries | 1 |
//! | `hash` | the hash is reported: `on`, `off` | `on` |
//! | `ring` | frames that a queue holds until they are polled | 256 |
//! | `full` | what becomes of frames beyond that: `drop` (counted), or `wait` in the port that is wrapped | `wait` around a port, `drop` in memory |
//! | `mtu` | the longest IP packet in bytes, both ways: 68 to 65000 | the wrapped port's, or 1500 |
//! | `sg`, `tx` | it sends frames in several pieces; it fills in checksums: `on`, `off` | `on` |
//! | `tso` | TCP super-packets that it cuts: `off`, `64k`, or the most bytes of TCP payload: `15928` | `64k` |
//! | `uso` | it cuts UDP super-packets: `on`, `off` | `on` |
//! | `tunnels` | it cuts super-packets in UDP tunnels: `on`, `off` | `off` |
//! | `wire` | `on`: between the card and the port it wraps frames are as on a wire; `off`: super-packets and partial checksums pass whole | `on` |
//!
//! What the wire means: super-packets that the wrapped port receives are cut to the frames that
//! they stand for, partial checksums are filled in, stripped tags put back; then the settings have
//! their say. What it sends it cuts itself, as its hardware, and hands frames with whole checksums
//! on.

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

/// The link of a card for which none is named.
const DEFAULT_LINK: &str = "nic";

/// Opens a model NIC around the port that it wraps, which `open` opens.
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

/// Reads the options of a model NIC.
pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
    NicSettings::from_options(spec.options(), spec.inner().is_some()).map(drop)
}

/// The card's end of a link in memory: its own limits are what counts.
fn wire(settings: &NicSettings) -> MemorySettings {
    // What arrives between two polls waits here, until the card looks and its ring overflows.
    MemorySettings {
        slots: (settings.ring * usize::from(settings.queues) * 4)
            .clamp(4096, MemorySettings::MAX_SLOTS),
        ..MemorySettings::default()
    }
}

#[cfg(test)]
mod tests;
