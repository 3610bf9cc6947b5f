//! Settings that other threads may change while packets are written.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use superpacket::wire::ip_headers;
use superpacket::{GsoKind, Layer};

use crate::Offloads;

/// Settings that select which super-packets are written to a device. They can be changed at run
/// time, from any thread.
///
/// All writers of a device share its switches. A change takes effect with the next
/// [`flush`](crate::Writer::flush). Packets of a kind, or to a destination, that is switched off
/// are written one by one, in their order.
#[derive(Clone, Debug)]
pub struct Switches(Arc<SharedSettings>);

#[derive(Debug)]
struct SharedSettings {
    /// Number of changes of the settings so far.
    version: AtomicU64,
    settings: Mutex<Settings>,
}

/// The current state of [`Switches`]: which super-packets are written to a device.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) on: Offloads,
    pub(crate) trusted_input: bool,
    forbidden: Vec<IpNet>,
    refusals: Vec<Refusal>,
}

impl Switches {
    /// Creates switches by which the super-packets in `on` are written, to all destinations.
    pub fn new(on: Offloads) -> Self {
        let settings =
            Settings { on, trusted_input: false, forbidden: Vec::new(), refusals: Vec::new() };
        Switches(Arc::new(SharedSettings {
            version: AtomicU64::new(0),
            settings: Mutex::new(settings),
        }))
    }

    /// Returns the kinds of super-packets that may be written at present.
    pub fn on(&self) -> Offloads {
        self.settings().on
    }

    /// Switches one kind of super-packets on or off. If the device has refused this kind and it is
    /// switched on, it is tried again.
    pub fn set(&self, kind: GsoKind, on: bool) {
        self.change(|settings| {
            settings.on = settings.on.with(kind, on);
            settings.refusals.retain(|refusal| refusal.kind != kind || !on);
        });
    }

    /// Switches all kinds of super-packets on or off.
    pub fn set_all(&self, on: bool) {
        for kind in [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp] {
            self.set(kind, on);
        }
    }

    /// Switches super-packets to these destinations off, an address or a prefix. This is for
    /// hardware on the way to them that segments super-packets wrongly.
    pub fn forbid(&self, destinations: impl Into<IpNet>) {
        let destinations = destinations.into().trunc();
        self.change(|settings| {
            if !settings.forbidden.contains(&destinations) {
                settings.forbidden.push(destinations);
            }
        });
    }

    /// Takes back [`forbid`](Self::forbid) for exactly this address or prefix. Returns whether
    /// super-packets to it were forbidden.
    pub fn allow(&self, destinations: impl Into<IpNet>) -> bool {
        let destinations = destinations.into().trunc();
        self.change(|settings| {
            let before = settings.forbidden.len();
            settings.forbidden.retain(|forbidden| *forbidden != destinations);
            settings.forbidden.len() != before
        })
    }

    /// Returns the destinations to which super-packets are forbidden, in the order in which they
    /// were added.
    pub fn forbidden(&self) -> Vec<IpNet> {
        self.settings().forbidden.clone()
    }

    /// Sets whether packets merge without verification of their checksums. The default is `false`:
    /// a packet with a wrong checksum is written unchanged, and its receiver drops it.
    ///
    /// With `true`, no payload is read, and a damaged packet may merge. The kernel then gives its
    /// payload a correct checksum, and the receiver takes damaged data for good data. A VPN's
    /// cipher does not prevent this: it proves that the peer sent these bytes, not that the peer's
    /// own network delivered them intact. Use it only if the packets' checksums have been verified
    /// before.
    pub fn set_trusted_input(&self, trusted: bool) {
        self.change(|settings| settings.trusted_input = trusted);
    }

    /// Returns the setting of [`set_trusted_input`](Self::set_trusted_input).
    pub fn trusted_input(&self) -> bool {
        self.settings().trusted_input
    }

    /// Returns the errors with which the device refused super-packets, at most one for each kind of
    /// super-packets that is switched off for this reason.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.settings().refusals.clone()
    }

    /// Switches a kind of super-packets off because the device has refused it. Returns whether the
    /// kind was on.
    pub(crate) fn refuse(&self, refusal: &Refusal) -> bool {
        self.change(|settings| {
            let is_news = settings.on.has(refusal.kind);
            settings.on = settings.on.with(refusal.kind, false);
            if is_news {
                settings.refusals.push(refusal.clone());
            }
            is_news
        })
    }

    /// Returns the settings and their current version, if they have changed since `version`.
    #[inline]
    pub(crate) fn newer_than(&self, version: u64) -> Option<(u64, Settings)> {
        if self.0.version.load(Ordering::Acquire) == version {
            return None;
        }
        let settings = self.settings();
        Some((self.0.version.load(Ordering::Acquire), settings.clone()))
    }

    /// Returns the settings and their version.
    pub(crate) fn snapshot(&self) -> (u64, Settings) {
        let settings = self.settings();
        (self.0.version.load(Ordering::Acquire), settings.clone())
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.0.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Settings) -> T) -> T {
        let mut settings = self.settings();
        let result = change(&mut settings);
        self.0.version.fetch_add(1, Ordering::Release);
        result
    }
}

impl Settings {
    /// Returns whether a super-packet of this kind may be written whole. `header` are its headers,
    /// which begin with that of `layer`.
    #[inline]
    pub(crate) fn allows(&self, kind: GsoKind, header: &[u8], layer: Layer) -> bool {
        self.on.has(kind) && (self.forbidden.is_empty() || self.allows_destination(header, layer))
    }

    #[cold]
    fn allows_destination(&self, header: &[u8], layer: Layer) -> bool {
        let [outermost, ..] = ip_headers(header, header.len(), layer);
        let link = outermost.map_or(header.len(), |(network, _)| network.into());
        destination(header.get(link..).unwrap_or(&[])).is_none_or(|address| {
            !self.forbidden.iter().any(|forbidden| forbidden.contains(&address))
        })
    }
}

/// Returns the destination address of an IP packet.
fn destination(header: &[u8]) -> Option<IpAddr> {
    match header.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*header.get(16..)?.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*header.get(24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// A super-packet that a device refused, so that its kind is switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The kind of super-packet that was refused.
    pub kind: GsoKind,
    /// The super-packet's length in bytes.
    pub length: usize,
    /// Number of packets that were merged into the super-packet. They have been written one by one.
    pub packets: u32,
    /// The kind of the error with which the device refused the super-packet.
    pub error: io::ErrorKind,
    /// The system's error number (`errno`) for the refusal; `None` if there is none.
    pub errno: Option<i32>,
}

impl Refusal {
    pub(crate) fn new(kind: GsoKind, length: usize, packets: u32, error: &io::Error) -> Self {
        Refusal { kind, length, packets, error: error.kind(), errno: error.raw_os_error() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { kind, length, packets, error, errno } = self;
        let error = errno.map_or_else(|| io::Error::from(*error), io::Error::from_raw_os_error);
        write!(
            formatter,
            "{kind:?} super-packets are switched off: the device refused one of {length} bytes, which were written as {packets} packets: {error}"
        )
    }
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;

    use super::*;

    fn prefix(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    #[test]
    fn the_destination_is_read_for_both_ip_versions() {
        let (four, six) =
            (Frame::tcp4(1, 0).at_ip().to_bytes(), Frame::tcp6(1, 0).at_ip().to_bytes());
        assert_eq!(
            destination(&four).map(|address| address.to_string().into_bytes()),
            Some(format!("{}.{}.{}.{}", four[16], four[17], four[18], four[19]).into_bytes())
        );
        assert!(destination(&six).is_some_and(|address| address.is_ipv6()));
        assert_eq!(destination(&four[..19]), None);
        assert_eq!(destination(&six[..39]), None);
        assert_eq!(destination(&[]), None);
    }

    #[test]
    fn a_prefix_forbids_the_addresses_in_it() {
        let switches = Switches::new(Offloads::ALL);
        let mut header = Frame::tcp4(1, 0).at_ip().to_bytes();
        header[16..20].copy_from_slice(&[10, 1, 2, 3]);
        let allows =
            |switches: &Switches| switches.snapshot().1.allows(GsoKind::Tcp4, &header, Layer::Ip);
        assert!(allows(&switches));
        switches.forbid(prefix("10.1.9.9/16"));
        switches.forbid(prefix("10.1.0.0/16"));
        assert_eq!(switches.forbidden(), [prefix("10.1.0.0/16")], "the same prefix");
        assert!(!allows(&switches));
        assert!(!switches.allow(prefix("10.0.0.0/8")), "another prefix");
        assert!(switches.allow(prefix("10.1.0.0/16")));
        assert!(allows(&switches));
        switches.forbid(IpAddr::from([10, 1, 2, 4]));
        assert!(allows(&switches));
        switches.forbid(IpAddr::from([10, 1, 2, 3]));
        assert!(!allows(&switches));
    }

    #[test]
    fn a_refusal_is_reported_once_until_the_kind_is_switched_on_again() {
        let switches = Switches::new(Offloads::ALL);
        let (before, _) = switches.snapshot();
        let refusal = Refusal::new(GsoKind::Udp, 60_000, 50, &io::Error::from_raw_os_error(22));
        assert!(switches.refuse(&refusal));
        assert!(!switches.refuse(&refusal));
        assert_eq!((switches.on(), switches.refusals().len()), (Offloads::TCP, 1));
        assert!(switches.newer_than(before).is_some());
        switches.set(GsoKind::Tcp4, true);
        assert_eq!(switches.refusals(), std::slice::from_ref(&refusal));
        switches.set(GsoKind::Udp, true);
        assert_eq!((switches.on(), switches.refusals().len()), (Offloads::ALL, 0));
        assert!(switches.refuse(&refusal), "tried again");
        let text = refusal.to_string();
        assert!(text.contains("Udp") && text.contains("50 packets"), "{text}");
    }
}
