//! Port strings: `name=kind:device?option=value&option=value`, where the name is optional.

mod error;
mod name;
mod options;

use std::fmt;
use std::str::FromStr;

pub use error::SpecError;
pub use options::SpecOptions;

/// The settings of a model NIC in a port string. All other options belong to the port that it
/// wraps.
pub const NIC_SETTINGS: [&str; 17] = [
    "page", "headroom", "copy", "csum", "vlan", "pad", "queues", "hash", "ring", "full", "mtu",
    "sg", "tx", "tso", "uso", "tunnels", "wire",
];

/// Maximum number of nested model NICs in a port string. Parsing, opening and dropping use stack
/// space per level.
pub(crate) const MAX_NESTED_NICS: usize = 8;

/// The kind of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortKind {
    /// One end of a link within this process: `memory:NAME`. The second port with the same name is
    /// the other end.
    Memory,
    /// A model NIC: `nic:SETTING=VALUE,...@PORT`.
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
    /// A UNIX socket that carries frames to or from a virtual machine: `unix:/run/vm0.sock`.
    Unix,
    /// A virtual machine, by vhost-user: `vhost:/run/vm0.sock`.
    Vhost,
}

impl PortKind {
    /// The kinds of ports that version 0.1.0 had.
    #[deprecated(since = "0.1.1", note = "the length is a part of its type: use `all`")]
    pub const ALL: [PortKind; 7] = [
        PortKind::Memory,
        PortKind::Nic,
        PortKind::Tap,
        PortKind::Tun,
        PortKind::Packet,
        PortKind::Xdp,
        PortKind::Pcap,
    ];

    /// Returns all kinds of ports.
    pub const fn all() -> &'static [PortKind] {
        &[
            PortKind::Memory,
            PortKind::Nic,
            PortKind::Tap,
            PortKind::Tun,
            PortKind::Packet,
            PortKind::Xdp,
            PortKind::Pcap,
            PortKind::Unix,
            PortKind::Vhost,
        ]
    }

    /// Returns the name of this kind, with which port strings of the kind begin.
    pub const fn name(self) -> &'static str {
        match self {
            PortKind::Memory => "memory",
            PortKind::Nic => "nic",
            PortKind::Tap => "tap",
            PortKind::Tun => "tun",
            PortKind::Packet => "packet",
            PortKind::Xdp => "xdp",
            PortKind::Pcap => "pcap",
            PortKind::Unix => "unix",
            PortKind::Vhost => "vhost",
        }
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A parsed port string.
///
/// ```
/// use superpacket_port::{PortKind, PortSpec};
///
/// let spec: PortSpec = "nic:page=4k,csum=complete@packet:eth0?version=v3".parse()?;
/// assert_eq!(spec.kind(), PortKind::Nic);
/// assert_eq!(spec.options().get("page"), Some("4k"));
/// let inner = spec.inner().expect("what the model NIC wraps");
/// assert_eq!((inner.kind(), inner.device(), inner.options().get("version")), (PortKind::Packet, "eth0", Some("v3")));
///
/// let named: PortSpec = "left=packet:eth0?ring=4m".parse()?;
/// assert_eq!((named.name(), named.string()), ("left", "packet:eth0?ring=4m"));
/// # Ok::<(), superpacket_port::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    name: String,
    is_named: bool,
    string: String,
    kind: PortKind,
    device: String,
    options: SpecOptions,
    inner: Option<Box<PortSpec>>,
}

impl PortSpec {
    /// Returns the port's name: the given name (`left=packet:eth0`), or the whole string.
    ///
    /// A given name has 1 to 32 ASCII letters, digits, `-`, `_` and `.`, and begins with a letter.
    /// It is neither a kind of port nor a word used by commands, such as `all`. Since it has no
    /// colon, it is never a port string.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the port string gives a name.
    pub const fn is_named(&self) -> bool {
        self.is_named
    }

    /// Returns the port string without the given name: `kind:device?option=value`.
    pub fn string(&self) -> &str {
        &self.string
    }

    /// Changes the port's name.
    ///
    /// # Errors
    /// [`SpecError::Name`], with the reason why a port cannot have this name.
    pub fn with_name(self, name: &str) -> Result<Self, SpecError> {
        name::check(name).map_err(|problem| SpecError::Name {
            port: self.to_string(),
            name: name.to_owned(),
            problem,
        })?;
        let mut named = PortSpec { name: name.to_owned(), is_named: true, ..self };
        named.options.port = named.to_string();
        Ok(named)
    }

    /// Returns this port string with the option `key` set to `value`, or removed (`None`). The name
    /// is kept.
    ///
    /// In a model NIC that wraps a port, an option that is not a setting of the NIC belongs to the
    /// wrapped port.
    ///
    /// ```
    /// use superpacket_port::PortSpec;
    ///
    /// let spec: PortSpec = "left=packet:eth0?ring=4m&queues=2".parse()?;
    /// let changed = spec.with_option("ring", Some("8m"))?.with_option("queues", None)?;
    /// assert_eq!((changed.name(), changed.string()), ("left", "packet:eth0?ring=8m"));
    /// # Ok::<(), superpacket_port::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError::Option`] if the option to be removed does not exist, or if a port string cannot
    /// contain it. Use [`check`](super::check) to find out whether the port knows the option.
    pub fn with_option(&self, key: &str, value: Option<&str>) -> Result<Self, SpecError> {
        let wrong = |problem: &str| {
            let option = value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
            SpecError::Option { port: self.to_string(), option, problem: problem.to_owned() }
        };
        let mut pairs = self.options.pairs.clone();
        let mut inner = self.inner.clone();
        if let Some(wrapped) = inner.as_deref_mut().filter(|_| !NIC_SETTINGS.contains(&key)) {
            *wrapped = wrapped.with_option(key, value)?;
        } else {
            match (pairs.iter().position(|(known, _)| known == key), value) {
                (Some(place), Some(value)) => pairs[place].1 = value.to_owned(),
                (Some(place), None) => drop(pairs.remove(place)),
                (None, Some(value)) => pairs.push((key.to_owned(), value.to_owned())),
                (None, None) => return Err(wrong("is not set, so it cannot be removed")),
            }
        }
        let (begin, separator) = if self.kind == PortKind::Nic { ("", ",") } else { ("?", "&") };
        let options = pairs
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
            .join(separator);
        let begin = if options.is_empty() { "" } else { begin };
        let wrapped =
            inner.as_deref().map_or_else(String::new, |inner| format!("@{}", inner.string));
        let string = format!("{}:{}{begin}{options}{wrapped}", self.kind, self.device);
        let mut changed: PortSpec =
            string.parse().map_err(|_| wrong("cannot stand in a port string"))?;
        // An option that contains a separator would produce another string.
        let strings = [&changed.inner, &inner].map(|inner| inner.as_deref().map(PortSpec::string));
        if changed.is_named
            || changed.device != self.device
            || changed.options.pairs != pairs
            || strings[0] != strings[1]
        {
            return Err(wrong("cannot stand in a port string"));
        }
        (changed.name, changed.is_named) = (self.name.clone(), self.is_named);
        changed.options.port = changed.to_string();
        Ok(changed)
    }

    /// Returns the kind of the port.
    pub const fn kind(&self) -> PortKind {
        self.kind
    }

    /// Returns the interface, device, link, file or socket that the port string names; empty for a
    /// model NIC.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the options of the port string; for a model NIC, its settings.
    pub const fn options(&self) -> &SpecOptions {
        &self.options
    }

    /// Returns the port that a model NIC wraps; `None` for a model NIC that wraps none, and for all
    /// other kinds of ports.
    pub fn inner(&self) -> Option<&PortSpec> {
        self.inner.as_deref()
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_named {
            write!(formatter, "{}=", self.name)?;
        }
        formatter.write_str(&self.string)
    }
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        PortSpec::parse(text, MAX_NESTED_NICS).map_err(|error| match error {
            // The error names the whole string, not the nested part.
            SpecError::Nested { .. } => SpecError::Nested { port: text.to_owned() },
            error => error,
        })
    }
}

impl PortSpec {
    /// Parses a port string with at most `nics` nested model NICs.
    fn parse(text: &str, nics: usize) -> Result<Self, SpecError> {
        let port = || text.to_owned();
        let (name, string) = name::split(text);
        if let Some(name) = name {
            name::check(name).map_err(|problem| SpecError::Name {
                port: port(),
                name: name.to_owned(),
                problem,
            })?;
        }
        let (kind, rest) =
            string.split_once(':').ok_or_else(|| SpecError::Kind { port: port() })?;
        let kind = PortKind::all()
            .iter()
            .copied()
            .find(|known| known.name() == kind)
            .ok_or_else(|| SpecError::Kind { port: port() })?;
        let (device, options, inner) = if kind == PortKind::Nic {
            let nics = nics.checked_sub(1).ok_or_else(|| SpecError::Nested { port: port() })?;
            let (settings, inner) = match rest.split_once('@') {
                Some((settings, inner)) => {
                    (settings, Some(Box::new(PortSpec::parse(inner, nics)?)))
                }
                None => (rest, None),
            };
            if let Some(PortSpec { name, is_named: true, .. }) = inner.as_deref() {
                let problem = "stands before a port in another: write it before nic:".to_owned();
                return Err(SpecError::Name { port: port(), name: name.clone(), problem });
            }
            ("", SpecOptions::parse(text, settings, ',')?, inner)
        } else {
            let (device, options) = rest.split_once('?').unwrap_or((rest, ""));
            if device.is_empty() {
                return Err(SpecError::Device { port: port() });
            }
            (device, SpecOptions::parse(text, options, '&')?, None)
        };
        Ok(PortSpec {
            name: name.unwrap_or(string).to_owned(),
            is_named: name.is_some(),
            string: string.to_owned(),
            kind,
            device: device.to_owned(),
            options,
            inner,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_that_the_documentation_names() {
        for (text, kind, device) in [
            ("tap:tap0", PortKind::Tap, "tap0"),
            ("tun:tun0", PortKind::Tun, "tun0"),
            ("packet:eth0", PortKind::Packet, "eth0"),
            ("xdp:eth0?queue=0", PortKind::Xdp, "eth0"),
            ("pcap:in.pcap", PortKind::Pcap, "in.pcap"),
            ("unix:/run/vm0.sock?mtu=9000", PortKind::Unix, "/run/vm0.sock"),
            ("vhost:/run/vm0.sock?queues=2", PortKind::Vhost, "/run/vm0.sock"),
            ("nic:", PortKind::Nic, ""),
        ] {
            let spec: PortSpec = text.parse().expect(text);
            assert_eq!(
                (spec.kind(), spec.device(), spec.to_string().as_str()),
                (kind, device, text)
            );
            assert_eq!(
                (spec.name(), spec.string(), spec.is_named()),
                (text, text, false),
                "called by its whole string"
            );
        }
    }

    #[test]
    fn a_name_stands_before_the_kind() {
        let longest = "a".repeat(32);
        for (text, name, string, device) in [
            ("left=packet:eth0?ring=4m", "left", "packet:eth0?ring=4m", "eth0"),
            ("Guest_1.a-b=tap:tap0", "Guest_1.a-b", "tap:tap0", "tap0"),
            (
                "old=nic:page=4k,csum=complete@packet:eth0?version=v3",
                "old",
                "nic:page=4k,csum=complete@packet:eth0?version=v3",
                "",
            ),
            ("in=pcap:a=b:c.pcap", "in", "pcap:a=b:c.pcap", "a=b:c.pcap"),
            (&format!("{longest}=memory:m"), &longest, "memory:m", "m"),
        ] {
            let spec: PortSpec = text.parse().expect(text);
            assert_eq!(
                (spec.name(), spec.string(), spec.device(), spec.is_named()),
                (name, string, device, true)
            );
            assert_eq!(spec.to_string(), text);
            let unnamed: PortSpec = string.parse().expect(string);
            assert_ne!(unnamed, spec);
            assert_eq!(unnamed.with_name(name), Ok(spec));
        }
        let file: PortSpec = "pcap:a=b.pcap".parse().expect("no name");
        assert_eq!((file.name(), file.is_named()), ("pcap:a=b.pcap", false));
    }

    #[test]
    fn a_name_that_no_port_can_have_is_refused_with_what_is_wrong() {
        let too_long = "a".repeat(33);
        for (name, says) in [
            ("", "is not 1 to 32 letters"),
            (&too_long, "is not 1 to 32 letters"),
            ("a b", "is not 1 to 32 letters"),
            ("a/b", "is not 1 to 32 letters"),
            ("l\u{ef}nks", "is not 1 to 32 letters"),
            ("9left", "does not begin with a letter"),
            ("-left", "does not begin with a letter"),
            ("all", "is a word of commands, as are all, any, auto"),
            ("dev", "is a word of commands"),
            ("packet", "is a kind of port"),
        ] {
            let text = format!("{name}=packet:eth0");
            let error = text.parse::<PortSpec>().expect_err(name);
            assert_eq!(error.to_string(), format!("port {text:?}: {}", error.problem(&text)));
            assert!(error.problem(&text).starts_with(&format!("name {name:?} {says}")), "{error}");
            let unnamed: PortSpec = "packet:eth0".parse().expect("well formed");
            let error = unnamed.with_name(name).expect_err(name);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("port \"packet:eth0\": name {name:?} {says}")),
                "{error}"
            );
        }
        let error =
            "nic:page=4k@left=packet:eth0".parse::<PortSpec>().expect_err("inside").to_string();
        assert!(
            error.contains("name \"left\" stands before a port in another: write it before nic:"),
            "{error}"
        );
        // An error after the name shows the whole string.
        for (text, says) in [
            ("left=eth0", "starts with no kind"),
            ("left=tap:", "names no interface"),
            ("left=tap:t?up", "has no value"),
        ] {
            let error = text.parse::<PortSpec>().expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("port {text:?}")) && error.contains(says),
                "{error}"
            );
        }
    }

    #[test]
    fn options_change_and_the_name_stays() {
        for (text, key, value, string) in [
            ("packet:eth0", "ring", Some("8m"), "packet:eth0?ring=8m"),
            (
                "left=packet:eth0?ring=4m&queues=2",
                "ring",
                Some("8m"),
                "packet:eth0?ring=8m&queues=2",
            ),
            ("left=packet:eth0?ring=4m&queues=2", "ring", None, "packet:eth0?queues=2"),
            ("left=packet:eth0?ring=4m", "ring", None, "packet:eth0"),
            ("packet:eth0?ring=4m", "ring", Some("4m"), "packet:eth0?ring=4m"),
            ("pcap:in.pcap", "record", Some("a=b?c.pcap"), "pcap:in.pcap?record=a=b?c.pcap"),
            (
                "nic:page=4k@packet:eth0?version=v3",
                "page",
                Some("8k"),
                "nic:page=8k@packet:eth0?version=v3",
            ),
            ("nic:page=4k@packet:eth0?version=v3", "version", None, "nic:page=4k@packet:eth0"),
            ("nic:@packet:eth0", "ring", Some("64"), "nic:ring=64@packet:eth0"),
            ("nic:link=x", "link", Some("y"), "nic:link=y"),
        ] {
            let spec: PortSpec = text.parse().expect(text);
            let changed = spec.with_option(key, value).expect(text);
            assert_eq!(
                (changed.string(), changed.name(), changed.is_named()),
                (string, spec.name(), spec.is_named()),
                "{text}"
            );
            // A parsed port string is printed unchanged.
            let read: PortSpec = string.parse().expect(string);
            assert_eq!(
                (read.kind(), read.device(), read.inner()),
                (changed.kind(), changed.device(), changed.inner())
            );
            assert_eq!(read.options().pairs, changed.options().pairs);
            assert!(
                changed.options().wrong(key, "").to_string().contains(&changed.to_string()),
                "errors name the string that it is now"
            );
        }
        for (text, key, value, says) in [
            (
                "left=packet:eth0",
                "ring",
                None,
                "port \"left=packet:eth0\": option \"ring\" is not set, so it cannot be removed",
            ),
            (
                "packet:eth0",
                "ring",
                Some("4m&queues=2"),
                "option \"ring=4m&queues=2\" cannot stand in a port string",
            ),
            ("packet:eth0", "a=b", Some("c"), "option \"a=b=c\" cannot stand in a port string"),
            ("nic:page=4k@packet:eth0", "page", Some("8k@tap:t"), "cannot stand in a port string"),
            (
                "nic:page=4k@packet:eth0",
                "page",
                Some("8k,csum=none"),
                "cannot stand in a port string",
            ),
        ] {
            let spec: PortSpec = text.parse().expect(text);
            let error = spec.with_option(key, value).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let deepest = format!("{}tap:t", "nic:@".repeat(MAX_NESTED_NICS));
        assert_eq!(deepest.parse::<PortSpec>().map(|spec| spec.to_string()), Ok(deepest));
        for (text, says) in [
            ("eth0", "starts with no kind"),
            ("eth0", "(for this interface: packet:eth0)"),
            ("dir/in.pcap", "(for this capture: pcap:dir/in.pcap)"),
            ("wifi:wlan0", "nic:, memory:"),
            ("tap:", "names no interface"),
            ("tap:t?queues", "has no value"),
            ("tap:t?queues=1&queues=2", "is there twice"),
            ("nic:page=4k@eth0", "starts with no kind"),
            (
                &format!("{}tap:t", "nic:@".repeat(MAX_NESTED_NICS + 1)),
                "nests more than 8 model NICs",
            ),
            (&"nic:@".repeat(100_000), "nests more than 8 model NICs"),
            (&"nic:@left=".repeat(100_000), "nests more than 8 model NICs"),
        ] {
            let error = text.parse::<PortSpec>().expect_err(text);
            assert!(error.to_string().contains(says), "{text}: {error}");
            assert!(
                error.problem(text).contains(says)
                    && !error.problem(text).contains(&format!("{text:?}")),
                "{text}: {}",
                error.problem(text)
            );
        }
    }
}
