//! Port strings: `kind:name?option=value&option=value`.

use std::fmt;
use std::str::FromStr;

/// The kinds of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortKind {
    /// One end of a link in this process: `memory:NAME`; the second port of the same name is the
    /// other end.
    Memory,
    /// The model NIC: `nic:SETTING=VALUE,...@PORT`.
    Nic,
    /// A TAP device: `tap:tap0`.
    Tap,
    /// A TUN device: `tun:tun0`.
    Tun,
    /// A packet socket on an interface: `packet:eth0`.
    Packet,
    /// AF_XDP sockets on an interface: `xdp:eth0`.
    Xdp,
    /// A capture file, replayed or recorded: `pcap:in.pcap`.
    Pcap,
}

impl PortKind {
    /// All kinds.
    pub const ALL: [PortKind; 7] =
        [PortKind::Memory, PortKind::Nic, PortKind::Tap, PortKind::Tun, PortKind::Packet, PortKind::Xdp, PortKind::Pcap];

    /// What a port string of this kind starts with.
    pub const fn name(self) -> &'static str {
        match self {
            PortKind::Memory => "memory",
            PortKind::Nic => "nic",
            PortKind::Tap => "tap",
            PortKind::Tun => "tun",
            PortKind::Packet => "packet",
            PortKind::Xdp => "xdp",
            PortKind::Pcap => "pcap",
        }
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A port string makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It does not start with a kind and a colon.
    #[error("port {port:?} starts with no kind of port: tap:, tun:, packet:, xdp:, pcap:, nic:, memory:")]
    Kind {
        /// The port string.
        port: String,
    },
    /// Nothing follows the kind.
    #[error("port {port:?} names no interface or file")]
    Name {
        /// The port string.
        port: String,
    },
    /// An option without value, or twice.
    #[error("port {port:?}: option {option:?} {problem}")]
    Option {
        /// The port string.
        port: String,
        /// The option as it was written.
        option: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl SpecError {
    /// Returns what is wrong with the port string `text`, which is not named again: for who has
    /// said that it is about this one.
    pub fn problem(&self, text: &str) -> String {
        let (SpecError::Kind { port } | SpecError::Name { port } | SpecError::Option { port, .. }) = self;
        if port != text {
            // It is about the port in it, that a model NIC wraps.
            return self.to_string();
        }
        match self {
            SpecError::Kind { .. } => "it starts with no kind of port: tap:, tun:, packet:, xdp:, pcap:, nic:, memory:".to_owned(),
            SpecError::Name { .. } => "it names no interface or file".to_owned(),
            SpecError::Option { option, problem, .. } => format!("option {option:?} {problem}"),
        }
    }
}

/// A port string, taken apart.
///
/// ```
/// use superpacket_io::port::{PortKind, PortSpec};
///
/// let spec: PortSpec = "nic:page=4k,csum=complete@packet:eth0?version=v3".parse()?;
/// assert_eq!(spec.kind(), PortKind::Nic);
/// assert_eq!(spec.options().get("page"), Some("4k"));
/// let inner = spec.inner().expect("what the model NIC wraps");
/// assert_eq!((inner.kind(), inner.name(), inner.options().get("version")), (PortKind::Packet, "eth0", Some("v3")));
/// # Ok::<(), superpacket_io::port::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    text: String,
    kind: PortKind,
    name: String,
    options: SpecOptions,
    inner: Option<Box<PortSpec>>,
}

impl PortSpec {
    /// The port string as it was written: the port's name everywhere.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What kind of port.
    pub const fn kind(&self) -> PortKind {
        self.kind
    }

    /// The interface, device, link or file; empty for a model NIC.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its options.
    pub const fn options(&self) -> &SpecOptions {
        &self.options
    }

    /// The port that a model NIC wraps; `None` for one that stands alone in memory, and for other
    /// kinds.
    pub fn inner(&self) -> Option<&PortSpec> {
        self.inner.as_deref()
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let port = || text.to_owned();
        let (kind, rest) = text.split_once(':').ok_or_else(|| SpecError::Kind { port: port() })?;
        let kind = PortKind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(|| SpecError::Kind { port: port() })?;
        if kind == PortKind::Nic {
            let (settings, inner) = match rest.split_once('@') {
                Some((settings, inner)) => (settings, Some(Box::new(inner.parse::<PortSpec>()?))),
                None => (rest, None),
            };
            let options = SpecOptions::parse(text, settings, ',')?;
            return Ok(PortSpec { text: port(), kind, name: String::new(), options, inner });
        }
        let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
        if name.is_empty() {
            return Err(SpecError::Name { port: port() });
        }
        Ok(PortSpec { text: port(), kind, name: name.to_owned(), options: SpecOptions::parse(text, options, '&')?, inner: None })
    }
}

/// The options of a port string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecOptions {
    port: String,
    pairs: Vec<(String, String)>,
}

impl SpecOptions {
    fn parse(port: &str, text: &str, separator: char) -> Result<Self, SpecError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in text.split(separator).filter(|part| !part.is_empty()) {
            let wrong = |problem: &str| SpecError::Option { port: port.into(), option: part.into(), problem: problem.into() };
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("has no value: write option=value"))?;
            if pairs.iter().any(|(known, _)| known == key) {
                return Err(wrong("is there twice"));
            }
            pairs.push((key.into(), value.into()));
        }
        Ok(SpecOptions { port: port.into(), pairs })
    }

    /// The value of an option as it was written.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The value of an option, read as `T`; `default` if it is not there.
    ///
    /// # Errors
    /// [`SpecError::Option`], which says that `expected` was expected.
    pub fn value<T: FromStr>(&self, key: &str, expected: &str, default: T) -> Result<T, SpecError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|_| self.wrong(key, expected)),
        }
    }

    /// The value of an option in bytes, with `k` or `m` for 1,024 or 1,048,576 of them; `default`
    /// if it is not there.
    ///
    /// # Errors
    /// [`SpecError::Option`] for anything else.
    pub fn bytes(&self, key: &str, default: usize) -> Result<usize, SpecError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let lower = value.to_ascii_lowercase();
        let (digits, unit) =
            match lower.strip_suffix('k').map(|digits| (digits, 1 << 10)).or(lower.strip_suffix('m').map(|digits| (digits, 1 << 20))) {
                Some(scaled) => scaled,
                None => (lower.as_str(), 1),
            };
        let bytes = digits.parse::<usize>().ok().and_then(|digits| digits.checked_mul(unit));
        bytes.ok_or_else(|| self.wrong(key, "takes a number of bytes: 2048, 4k, 1m"))
    }

    /// The value of a switch: `on` or `off`; `default` if it is not there.
    ///
    /// # Errors
    /// [`SpecError::Option`] for anything else.
    pub fn switch(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        match self.get(key) {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(_) => Err(self.wrong(key, "takes on or off")),
        }
    }

    /// An error about an option that is there.
    pub fn wrong(&self, key: &str, problem: &str) -> SpecError {
        let option = self.get(key).map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
        SpecError::Option { port: self.port.clone(), option, problem: problem.into() }
    }

    /// Refuses options other than these.
    ///
    /// # Errors
    /// [`SpecError::Option`] names the first that is not known, and those that are.
    pub fn only(&self, known: &[&str]) -> Result<(), SpecError> {
        match self.pairs.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) if known.is_empty() => Err(self.wrong(key, "is not known: this kind of port has none")),
            Some((key, _)) => Err(self.wrong(key, &format!("is not known: this kind of port has {}", known.join(", ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_that_the_documentation_names() {
        for (text, kind, name) in [
            ("tap:tap0", PortKind::Tap, "tap0"),
            ("tun:tun0", PortKind::Tun, "tun0"),
            ("packet:eth0", PortKind::Packet, "eth0"),
            ("xdp:eth0?queue=0", PortKind::Xdp, "eth0"),
            ("pcap:in.pcap", PortKind::Pcap, "in.pcap"),
            ("nic:", PortKind::Nic, ""),
        ] {
            let spec: PortSpec = text.parse().expect(text);
            assert_eq!((spec.kind(), spec.name(), spec.to_string().as_str()), (kind, name, text));
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, says) in [
            ("eth0", "starts with no kind"),
            ("wifi:wlan0", "starts with no kind"),
            ("tap:", "names no interface"),
            ("tap:t?queues", "has no value"),
            ("tap:t?queues=1&queues=2", "is there twice"),
            ("nic:page=4k@eth0", "starts with no kind"),
        ] {
            let error = text.parse::<PortSpec>().expect_err(text);
            assert!(error.to_string().contains(says), "{text}: {error}");
            assert!(error.problem(text).contains(says) && !error.problem(text).contains(text), "{text}: {}", error.problem(text));
        }
    }

    #[test]
    fn values_are_read_with_their_units() {
        let spec: PortSpec = "packet:eth0?ring=4m&slot=2k&fanout=3&outgoing=on".parse().expect("well formed");
        let options = spec.options();
        assert_eq!((options.bytes("ring", 0), options.bytes("slot", 0), options.bytes("none", 5)), (Ok(4 << 20), Ok(2048), Ok(5)));
        assert_eq!((options.value("fanout", "takes a number", 0), options.switch("outgoing", false)), (Ok(3u16), Ok(true)));
        assert!(options.bytes("outgoing", 0).expect_err("no number").to_string().contains("outgoing=on"));
        assert!(options.only(&["ring", "slot", "fanout"]).expect_err("one more").to_string().contains("ring, slot, fanout"));
    }
}
