//! The headers before the IP header: Ethernet, VLAN tags, PPPoE, MPLS.

/// An Ethernet II header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// The EtherType behind the last VLAN tag; derived from the next layer if `None`.
    pub ethertype: Option<u16>,
}

impl Default for Ethernet {
    fn default() -> Self {
        Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ethertype: None }
    }
}

/// A VLAN tag in the frame (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Tag protocol: 0x8100 (customer) or 0x88a8 (service).
    pub tpid: u16,
    /// Priority, 3 bits.
    pub pcp: u8,
    /// Drop eligible indicator (DEI).
    pub dei: bool,
    /// VLAN ID, 12 bits.
    pub vid: u16,
}

impl Default for Vlan {
    fn default() -> Self {
        Vlan { tpid: 0x8100, pcp: 0, dei: false, vid: 1 }
    }
}

impl Vlan {
    /// Returns priority, drop eligibility and VLAN ID as one 16-bit field (TCI).
    pub fn tci(&self) -> u16 {
        u16::from(self.pcp) << 13 | u16::from(self.dei) << 12 | (self.vid & 0xfff)
    }
}

/// A PPPoE session header (RFC 2516) and the PPP protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pppoe {
    /// Version and type, 4 bits each: 0x11.
    pub version_type: u8,
    /// Code: 0 for session data.
    pub code: u8,
    /// Session ID.
    pub session: u16,
    /// The length field in bytes, PPP protocol included; the correct one if `None`.
    pub length: Option<u16>,
}

impl Default for Pppoe {
    fn default() -> Self {
        Pppoe { version_type: 0x11, code: 0, session: 1, length: None }
    }
}

/// An MPLS label stack entry (RFC 3032).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mpls {
    /// Label, 20 bits.
    pub label: u32,
    /// Traffic class, 3 bits.
    pub exp: u8,
    /// Time to live.
    pub ttl: u8,
    /// Whether this entry has the bottom-of-stack bit. `None`: set on the last entry of the stack
    /// only.
    pub bottom: Option<bool>,
}

impl Default for Mpls {
    fn default() -> Self {
        Mpls { label: 100, exp: 0, ttl: 64, bottom: None }
    }
}

/// Appends an Ethernet header and its tags, for a payload of `ethertype`.
pub(super) fn write_ethernet(
    out: &mut Vec<u8>,
    ethernet: &Ethernet,
    vlans: &[Vlan],
    ethertype: u16,
) {
    out.extend(ethernet.destination);
    out.extend(ethernet.source);
    for vlan in vlans {
        out.extend(vlan.tpid.to_be_bytes());
        out.extend(vlan.tci().to_be_bytes());
    }
    out.extend(ethernet.ethertype.unwrap_or(ethertype).to_be_bytes());
}

/// Appends an MPLS label stack.
pub(super) fn write_mpls(out: &mut Vec<u8>, stack: &[Mpls]) {
    for (index, entry) in stack.iter().enumerate() {
        let bottom = entry.bottom.unwrap_or(index + 1 == stack.len());
        let word = (entry.label & 0xf_ffff) << 12
            | u32::from(entry.exp & 7) << 9
            | u32::from(bottom) << 8
            | u32::from(entry.ttl);
        out.extend(word.to_be_bytes());
    }
}
