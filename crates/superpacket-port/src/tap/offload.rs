//! Offloads that the host leaves to a TAP or TUN port: the bits of `TUNSETOFFLOAD`
//! (`drivers/net/tun.c`, `set_offload`).

use std::fmt;

use crate::system::{TUN_F_UDP_TUNNEL_GSO as TUNNEL, TUN_F_UDP_TUNNEL_GSO_CSUM as TUNNEL_CHECKSUM};

/// A set of offloads that the host leaves to the port, as `TUN_F_*` bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HostOffloads(u32);

/// The names of offloads in port strings, with their bits. The kernel accepts USO only for both IP
/// versions together.
const NAMES: [(&str, u32); 7] = [
    ("csum", libc::TUN_F_CSUM),
    ("tso4", libc::TUN_F_TSO4),
    ("tso6", libc::TUN_F_TSO6),
    ("ecn", libc::TUN_F_TSO_ECN),
    ("uso", libc::TUN_F_USO4 | libc::TUN_F_USO6),
    ("tunnel", TUNNEL),
    ("tunnel-csum", TUNNEL_CHECKSUM),
];

/// Dependencies between offloads: the kernel refuses the bits of the first set of a pair unless at
/// least one bit of the second set is present.
const NEEDS: [(u32, u32); 6] = [
    (libc::TUN_F_TSO4, libc::TUN_F_CSUM),
    (libc::TUN_F_TSO6, libc::TUN_F_CSUM),
    (libc::TUN_F_TSO_ECN, libc::TUN_F_TSO4 | libc::TUN_F_TSO6),
    (libc::TUN_F_USO4 | libc::TUN_F_USO6, libc::TUN_F_CSUM),
    (TUNNEL, libc::TUN_F_TSO4 | libc::TUN_F_TSO6),
    (TUNNEL_CHECKSUM, TUNNEL),
];

impl HostOffloads {
    /// No offload: the host segments every packet and completes its checksums.
    pub(super) const NONE: HostOffloads = HostOffloads(0);

    const TCP: HostOffloads =
        HostOffloads(libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN);

    /// TCP and UDP segmentation, since Linux 6.2.
    const UDP: HostOffloads = HostOffloads(Self::TCP.0 | libc::TUN_F_USO4 | libc::TUN_F_USO6);

    const ALL: HostOffloads = HostOffloads(Self::UDP.0 | TUNNEL | TUNNEL_CHECKSUM);

    /// The sets supported by kernel versions, from the newest to the oldest.
    pub(super) const LADDER: [HostOffloads; 4] = [Self::ALL, Self::UDP, Self::TCP, Self::NONE];

    /// Parses the value of the option `offload`: `on` (`None`, meaning all that the kernel
    /// supports), `off`, or a comma-separated list of names.
    ///
    /// The error is a phrase with the accepted values.
    pub(super) fn parse(value: &str) -> Result<Option<HostOffloads>, String> {
        match value {
            "on" => return Ok(None),
            "off" => return Ok(Some(Self::NONE)),
            _ => {}
        }
        let bits = value.split(',').try_fold(0, |bits, name| {
            match NAMES.iter().find(|known| known.0 == name) {
                Some((_, bit)) => Ok(bits | bit),
                None => Err(format!(
                    "takes on, off, or some of {}",
                    NAMES.map(|known| known.0).join(",")
                )),
            }
        })?;
        match NEEDS.iter().find(|(of, one)| bits & of != 0 && bits & one == 0) {
            None => Ok(Some(HostOffloads(bits))),
            Some(&(of, one)) => {
                Err(format!("has {} without {}", HostOffloads(of), HostOffloads(one)))
            }
        }
    }

    /// Returns the offloads as the bits that `TUNSETOFFLOAD` takes.
    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set contains all of `others`.
    pub(super) const fn contain(self, others: HostOffloads) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns the offloads of `self` that `others` lacks.
    pub(super) const fn beyond(self, others: HostOffloads) -> HostOffloads {
        HostOffloads(self.0 & !others.0)
    }

    /// Returns whether super-packets in UDP tunnels are included.
    pub(super) const fn has_tunnels(self) -> bool {
        self.0 & TUNNEL != 0
    }

    /// Returns this set without the offloads that only a header with tunnel fields can describe.
    pub(super) const fn without_tunnels(self) -> HostOffloads {
        HostOffloads(self.0 & !(TUNNEL | TUNNEL_CHECKSUM))
    }

    /// Returns whether UDP super-packets are included.
    pub(super) const fn has_udp(self) -> bool {
        self.0 & libc::TUN_F_USO4 != 0
    }
}

impl fmt::Display for HostOffloads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in NAMES.iter().filter(|known| self.0 & known.1 != 0) {
            write!(formatter, "{separator}{name}")?;
            separator = ",";
        }
        if separator.is_empty() { formatter.write_str("off") } else { Ok(()) }
    }
}

impl fmt::Debug for HostOffloads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_shown() {
        assert_eq!(HostOffloads::parse("on"), Ok(None));
        assert_eq!(HostOffloads::parse("off"), Ok(Some(HostOffloads::NONE)));
        assert_eq!(HostOffloads::parse("csum,tso4,tso6,ecn"), Ok(Some(HostOffloads::TCP)));
        assert_eq!(
            HostOffloads::parse("csum,tso4,tso6,ecn,uso,tunnel,tunnel-csum"),
            Ok(Some(HostOffloads::ALL))
        );
        assert_eq!(HostOffloads::UDP.to_string(), "csum,tso4,tso6,ecn,uso");
        assert_eq!(HostOffloads::NONE.to_string(), "off");
    }

    #[test]
    fn what_the_kernel_would_refuse_is_named() {
        assert_eq!(HostOffloads::parse("tso4"), Err("has tso4 without csum".into()));
        assert_eq!(HostOffloads::parse("csum,ecn"), Err("has ecn without tso4,tso6".into()));
        assert_eq!(
            HostOffloads::parse("csum,tso6,tunnel-csum"),
            Err("has tunnel-csum without tunnel".into())
        );
        assert!(HostOffloads::parse("csum,lro").expect_err("no name").contains("tunnel-csum"));
    }
}
