//! Which super-packets a device gives or takes.

use std::fmt;

use superpacket::GsoKind;

/// Which super-packets a device gives or takes, in the terms of `TUNSETOFFLOAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offloads {
    /// Packets with a checksum that is not computed yet (`TUN_F_CSUM`). All others need it.
    pub checksum: bool,
    /// TCP super-packets over IPv4 (`TUN_F_TSO4`).
    pub tcp4: bool,
    /// TCP super-packets over IPv6 (`TUN_F_TSO6`).
    pub tcp6: bool,
    /// UDP super-packets over both (`TUN_F_USO4`, `TUN_F_USO6`), from Linux 6.2 on.
    pub udp: bool,
}

impl Offloads {
    /// All of them.
    pub const ALL: Offloads = Offloads { checksum: true, tcp4: true, tcp6: true, udp: true };

    /// All but UDP.
    pub const TCP: Offloads = Offloads { udp: false, ..Self::ALL };

    /// Checksums only.
    pub const CHECKSUM: Offloads =
        Offloads { checksum: true, tcp4: false, tcp6: false, udp: false };

    /// None of them: single packets with complete checksums.
    pub const NONE: Offloads = Offloads { checksum: false, tcp4: false, tcp6: false, udp: false };

    /// Are super-packets of this kind among them? IP fragments and DCCP never are.
    #[inline]
    pub const fn has(self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::Tcp4 => self.tcp4,
            GsoKind::Tcp6 => self.tcp6,
            GsoKind::Udp => self.udp,
            _ => false,
        }
    }

    /// Are super-packets of any kind among them?
    #[inline]
    pub const fn has_any_kind(self) -> bool {
        self.tcp4 || self.tcp6 || self.udp
    }

    /// These, with one kind switched on or off. IP fragments and DCCP have no switch.
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
