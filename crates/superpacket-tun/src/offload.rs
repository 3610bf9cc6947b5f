//! The offloads of a device.

use std::fmt;

use superpacket::GsoKind;

/// The kinds of super-packets that a device delivers or accepts, in the terms of `TUNSETOFFLOAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offloads {
    /// Packets with an incomplete checksum (`TUN_F_CSUM`). All other offloads need this one.
    pub checksum: bool,
    /// TCP super-packets over IPv4 (`TUN_F_TSO4`).
    pub tcp4: bool,
    /// TCP super-packets over IPv6 (`TUN_F_TSO6`).
    pub tcp6: bool,
    /// UDP super-packets over IPv4 and IPv6 (`TUN_F_USO4`, `TUN_F_USO6`), from Linux 6.2 on.
    pub udp: bool,
}

impl Offloads {
    /// All offloads.
    pub const ALL: Offloads = Offloads { checksum: true, tcp4: true, tcp6: true, udp: true };

    /// All offloads but UDP.
    pub const TCP: Offloads = Offloads { udp: false, ..Self::ALL };

    /// Packets with an incomplete checksum, but no super-packets.
    pub const CHECKSUM: Offloads =
        Offloads { checksum: true, tcp4: false, tcp6: false, udp: false };

    /// No offloads: single packets with complete checksums.
    pub const NONE: Offloads = Offloads { checksum: false, tcp4: false, tcp6: false, udp: false };

    /// Returns whether these offloads include super-packets of this kind. They never include IP
    /// fragments and DCCP.
    #[inline]
    pub const fn has(self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::Tcp4 => self.tcp4,
            GsoKind::Tcp6 => self.tcp6,
            GsoKind::Udp => self.udp,
            _ => false,
        }
    }

    /// Returns whether these offloads include super-packets of any kind.
    #[inline]
    pub const fn has_any_kind(self) -> bool {
        self.tcp4 || self.tcp6 || self.udp
    }

    /// Returns these offloads with one kind of super-packets switched on or off. IP fragments and
    /// DCCP cannot be switched on.
    #[must_use]
    pub const fn with(mut self, kind: GsoKind, on: bool) -> Self {
        match kind {
            GsoKind::Tcp4 => self.tcp4 = on,
            GsoKind::Tcp6 => self.tcp6 = on,
            GsoKind::Udp => self.udp = on,
            _ => {}
        }
        self.checksum |= on;
        self
    }
}

impl fmt::Display for Offloads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names =
            [("csum", self.checksum), ("tso4", self.tcp4), ("tso6", self.tcp6), ("uso", self.udp)];
        let mut separator = "";
        for (name, _) in names.iter().filter(|(_, on)| *on) {
            write!(formatter, "{separator}{name}")?;
            separator = ",";
        }
        if separator.is_empty() { formatter.write_str("none") } else { Ok(()) }
    }
}
