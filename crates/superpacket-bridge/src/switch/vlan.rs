//! VLAN filtering: the VLANs that a port is in, with the rules of Linux's bridge (`vlan_filtering`)
//! and the terms of iproute2's `bridge vlan`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use superpacket::packet::VlanTag;
use superpacket::wire::ethernet;

/// The highest VLAN number.
pub const MOST_VLAN: u16 = 4094;

/// The bits of a VLAN tag's control field that hold the VLAN number.
const NUMBER: u16 = 0x0fff;

/// The type of VLAN tag that names a frame's VLAN, with iproute2's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// `802.1Q`: customer tags, EtherType 0x8100.
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1Q,
    /// `802.1ad`: service tags (provider bridges), EtherType 0x88a8. The bridge then ignores
    /// customer tags, which pass unchanged.
    #[serde(rename = "802.1ad")]
    Dot1Ad,
}

impl VlanProtocol {
    /// Returns the EtherType of this type of tag in host byte order.
    pub const fn ether_type(self) -> u16 {
        match self {
            VlanProtocol::Dot1Q => ethernet::VLAN,
            VlanProtocol::Dot1Ad => 0x88a8,
        }
    }
}

impl fmt::Display for VlanProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            VlanProtocol::Dot1Q => "802.1Q",
            VlanProtocol::Dot1Ad => "802.1ad",
        })
    }
}

impl FromStr for VlanProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [VlanProtocol::Dot1Q, VlanProtocol::Dot1Ad];
        let found =
            known.into_iter().find(|protocol| protocol.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            format!("{text:?} is no protocol of VLAN tags: there are 802.1Q and 802.1ad")
        })
    }
}

/// A set of VLAN numbers, with one bit for each.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VlanSet([u64; 64]);

impl VlanSet {
    const NONE: VlanSet = VlanSet([0; 64]);

    #[inline]
    fn has(&self, vlan: u16) -> bool {
        let vlan = usize::from(vlan & NUMBER);
        self.0[vlan / 64] & 1 << (vlan % 64) != 0
    }

    fn set(&mut self, vlan: u16, is_in: bool) {
        let vlan = usize::from(vlan & NUMBER);
        if is_in {
            self.0[vlan / 64] |= 1 << (vlan % 64);
        } else {
            self.0[vlan / 64] &= !(1 << (vlan % 64));
        }
    }
}

/// The VLANs of which a port is a member. They matter only if the bridge filters by VLAN.
#[derive(Clone, PartialEq, Eq)]
pub struct PortVlans {
    allowed: VlanSet,
    /// The VLANs of the port whose frames leave the port without a tag.
    untagged: VlanSet,
    /// The VLAN to which frames belong that arrive without a tag; `None` if these are dropped.
    pvid: Option<u16>,
}

impl Default for PortVlans {
    /// Returns membership in VLAN 1, which is the PVID and untagged, as by default in Linux's
    /// bridge.
    fn default() -> Self {
        let mut vlans = PortVlans::none();
        vlans.add(&VlanRange { first: 1, last: 1, pvid: true, untagged: true });
        vlans
    }
}

impl PortVlans {
    /// Returns membership in no VLAN: no frame enters or leaves the port.
    pub const fn none() -> Self {
        PortVlans { allowed: VlanSet::NONE, untagged: VlanSet::NONE, pvid: None }
    }

    /// Returns the VLAN to which frames belong that arrive without a tag; `None` if these are
    /// dropped.
    pub const fn pvid(&self) -> Option<u16> {
        self.pvid
    }

    /// Makes the port a member of VLANs, or changes its flags in them.
    pub fn add(&mut self, range: &VlanRange) {
        for vlan in range.first..=range.last {
            self.allowed.set(vlan, true);
            self.untagged.set(vlan, range.untagged);
            if range.pvid {
                self.pvid = Some(vlan);
            } else if self.pvid == Some(vlan) {
                self.pvid = None;
            }
        }
    }

    /// Removes the port from the VLANs `first` to `last`, and returns of how many it was a member.
    pub fn delete(&mut self, first: u16, last: u16) -> usize {
        let mut count = 0;
        for vlan in first..=last {
            count += usize::from(self.allowed.has(vlan));
            self.allowed.set(vlan, false);
            self.untagged.set(vlan, false);
            self.pvid = self.pvid.filter(|&pvid| pvid != vlan);
        }
        count
    }

    /// Returns whether the port is a member of this VLAN.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        self.allowed.has(vlan)
    }

    /// Returns a tag of type `protocol` with the number of the VLAN to which an arriving frame
    /// belongs. `tag` is the frame's own tag; one with number 0 carries only a priority (IEEE
    /// 802.1Q, table 9-2). `None` if the port is not a member of the frame's VLAN.
    #[inline]
    pub(crate) fn admit(&self, tag: Option<VlanTag>, protocol: VlanProtocol) -> Option<VlanTag> {
        let control = tag.map_or(0, |tag| tag.control);
        let vlan = match control & NUMBER {
            0 => self.pvid?,
            vlan => vlan,
        };
        self.has(vlan).then_some(VlanTag {
            protocol: protocol.ether_type(),
            control: control & !NUMBER | vlan,
        })
    }

    /// Returns the tag with which a frame leaves the port; `None` for a frame without a tag. `tag`
    /// names the frame's VLAN, of which the port must be a member.
    #[inline]
    pub(crate) fn leave(&self, tag: VlanTag) -> Option<VlanTag> {
        (!self.untagged.has(number(tag))).then_some(tag)
    }

    /// Returns the VLANs of the port, as ranges in which the port has the same flags.
    pub fn ranges(&self) -> Vec<VlanRange> {
        let mut ranges: Vec<VlanRange> = Vec::new();
        for vlan in (1..=MOST_VLAN).filter(|&vlan| self.has(vlan)) {
            let (pvid, untagged) = (self.pvid == Some(vlan), self.untagged.has(vlan));
            match ranges.last_mut() {
                Some(range)
                    if range.last + 1 == vlan
                        && !pvid
                        && !range.pvid
                        && range.untagged == untagged =>
                {
                    range.last = vlan
                }
                _ => ranges.push(VlanRange { first: vlan, last: vlan, pvid, untagged }),
            }
        }
        ranges
    }
}

impl fmt::Debug for PortVlans {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.ranges().iter().map(ToString::to_string)).finish()
    }
}

/// Checks that a VLAN number is in range; the error is a sentence.
pub(crate) fn check_number(vlan: u16) -> Result<(), String> {
    match vlan {
        1..=MOST_VLAN => Ok(()),
        _ => Err(format!("a VLAN is 1 to {MOST_VLAN}, not {vlan}")),
    }
}

/// Returns the VLAN number of a tag.
#[inline]
pub(crate) const fn number(tag: VlanTag) -> u16 {
    tag.control & NUMBER
}

/// A range of VLANs, and a port's flags in them, as text such as `10`, `10-20` or `10 pvid
/// untagged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange {
    /// The first VLAN.
    pub first: u16,
    /// The last VLAN.
    pub last: u16,
    /// Whether arriving frames without a tag belong to this VLAN; allowed only for a single VLAN.
    pub pvid: bool,
    /// Whether frames of these VLANs leave the port without a tag.
    pub untagged: bool,
}

impl VlanRange {
    /// Returns the range of VLANs from `first` to `last` with these flags.
    ///
    /// # Errors
    /// A message if a number is out of range, `last` is below `first`, or `pvid` is set for several
    /// VLANs.
    pub fn new(first: u16, last: u16, pvid: bool, untagged: bool) -> Result<VlanRange, String> {
        [first, last].into_iter().try_for_each(check_number)?;
        if last < first {
            return Err(format!("{first}-{last} ends before it begins"));
        }
        if pvid && first != last {
            return Err(format!("pvid is for one VLAN, not for {first}-{last}"));
        }
        Ok(VlanRange { first, last, pvid, untagged })
    }
}

impl FromStr for VlanRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no VLAN: write 10, 10-20 or \"10 pvid untagged\"");
        let mut words = text.split_whitespace();
        let numbers = words.next().ok_or_else(wrong)?;
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        // Reject signs: a number begins with a digit.
        let number = |text: &str| {
            text.parse().ok().filter(|_| text.starts_with(|digit: char| digit.is_ascii_digit()))
        };
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        let (mut pvid, mut untagged) = (false, false);
        for word in words {
            match word {
                "pvid" if !pvid => pvid = true,
                "untagged" if !untagged => untagged = true,
                _ => return Err(wrong()),
            }
        }
        VlanRange::new(first, last, pvid, untagged)
    }
}

impl fmt::Display for VlanRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.first)?;
        if self.last != self.first {
            write!(formatter, "-{}", self.last)?;
        }
        formatter.write_str(if self.pvid { " pvid" } else { "" })?;
        formatter.write_str(if self.untagged { " untagged" } else { "" })
    }
}

/// A report of the VLANs of all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanReport {
    /// Whether the bridge filters by VLAN. If not, the VLANs of the ports have no effect.
    pub vlan_filtering: bool,
    /// The type of VLAN tag by which the bridge filters.
    #[serde(default)]
    pub vlan_protocol: VlanProtocol,
    /// The VLANs of each port.
    pub ports: Vec<PortVlanReport>,
}

/// The VLANs of a port, with the field names of iproute2's `bridge -json -compressvlans vlan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortVlanReport {
    /// The port's name.
    pub ifname: String,
    /// The VLANs of the port, as ranges in which the port has the same flags.
    pub vlans: Vec<VlanEntry>,
}

/// A range of VLANs in which a port has the same flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanEntry {
    /// The first VLAN of the range.
    pub vlan: u16,
    /// The last VLAN of the range; `None` if there is only one.
    #[serde(rename = "vlanEnd", default, skip_serializing_if = "Option::is_none")]
    pub vlan_end: Option<u16>,
    /// The port's flags in these VLANs. `PVID`: frames that arrive without a tag belong to this
    /// VLAN. `Egress Untagged`: frames leave without a tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

impl PortVlanReport {
    /// Returns the report of the VLANs of a port with this name.
    pub fn new(ifname: &str, vlans: &PortVlans) -> Self {
        let entry = |range: VlanRange| VlanEntry {
            vlan: range.first,
            vlan_end: Some(range.last).filter(|&last| last != range.first),
            flags: [(range.pvid, "PVID"), (range.untagged, "Egress Untagged")]
                .into_iter()
                .filter(|(is_set, _)| *is_set)
                .map(|(_, flag)| flag.to_owned())
                .collect(),
        };
        PortVlanReport {
            ifname: ifname.to_owned(),
            vlans: vlans.ranges().into_iter().map(entry).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlans(words: &[&str]) -> PortVlans {
        let mut vlans = PortVlans::none();
        words.iter().for_each(|words| vlans.add(&words.parse().expect(words)));
        vlans
    }

    fn tag(control: u16) -> VlanTag {
        VlanTag { protocol: 0x8100, control }
    }

    #[test]
    fn ranges_are_parsed_and_errors_name_the_problem() {
        for text in
            ["1", "4094", "10-20", "7 pvid", "7 untagged", "7 pvid untagged", "10-20 untagged"]
        {
            assert_eq!(text.parse::<VlanRange>().expect(text).to_string(), text);
        }
        assert_eq!(
            "7 untagged pvid".parse::<VlanRange>().expect("in any order").to_string(),
            "7 pvid untagged"
        );
        for (text, says) in [
            ("", "\"\" is no VLAN: write 10, 10-20"),
            ("ten", "\"ten\" is no VLAN"),
            ("+1", "is no VLAN"),
            ("1-", "is no VLAN"),
            ("1 pvid pvid", "is no VLAN"),
            ("1 tagged", "is no VLAN"),
            ("0", "a VLAN is 1 to 4094, not 0"),
            ("4000-4095", "not 4095"),
            ("20-10", "20-10 ends before it begins"),
            ("10-20 pvid", "pvid is for one VLAN, not for 10-20"),
        ] {
            let error = text.parse::<VlanRange>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_port_is_in_its_configured_vlans() {
        let shown =
            |vlans: &PortVlans| vlans.ranges().iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut port = PortVlans::default();
        assert_eq!(shown(&port), ["1 pvid untagged"]);
        port.add(&"10-20".parse().expect("reads"));
        port.add(&"15 pvid untagged".parse().expect("reads"));
        assert_eq!(
            (shown(&port), port.pvid()),
            (
                ["1 untagged", "10-14", "15 pvid untagged", "16-20"].map(str::to_owned).to_vec(),
                Some(15)
            )
        );
        // Adding a VLAN again without flags removes its flags.
        port.add(&"15".parse().expect("reads"));
        assert_eq!(
            (shown(&port), port.pvid()),
            (["1 untagged", "10-20"].map(str::to_owned).to_vec(), None)
        );
        assert_eq!((port.delete(1, 12), port.delete(1, 12), port.delete(100, 4094)), (4, 0, 0));
        assert_eq!(shown(&port), ["13-20"]);
        assert_eq!(shown(&vlans(&["1-4094 untagged"])), ["1-4094 untagged"]);
    }

    #[test]
    fn frames_enter_by_tag_and_leave_by_vlan() {
        let access = vlans(&["10 pvid untagged"]);
        let trunk = vlans(&["10-20", "7 untagged"]);
        use VlanProtocol::{Dot1Ad, Dot1Q};
        assert_eq!(access.admit(None, Dot1Q), Some(tag(10)));
        assert_eq!(
            access.admit(Some(tag(0xe000)), Dot1Q),
            Some(tag(0xe00a)),
            "a priority alone stays"
        );
        assert_eq!(access.admit(Some(tag(0x600a)), Dot1Q), Some(tag(0x600a)));
        assert_eq!(access.admit(Some(tag(11)), Dot1Q), None);
        assert_eq!(
            (trunk.admit(None, Dot1Q), trunk.admit(Some(tag(0x2000)), Dot1Q)),
            (None, None),
            "no VLAN for them"
        );
        assert_eq!(trunk.admit(Some(tag(0x300f)), Dot1Q), Some(tag(0x300f)));
        assert_eq!(trunk.admit(Some(tag(0xfff)), Dot1Q), None);
        assert_eq!(
            (access.leave(tag(10)), trunk.leave(tag(0x200a)), trunk.leave(tag(7))),
            (None, Some(tag(0x200a)), None)
        );
        let service = |control| VlanTag { protocol: 0x88a8, control };
        assert_eq!(
            (access.admit(None, Dot1Ad), access.admit(Some(service(0x200a)), Dot1Ad)),
            (Some(service(10)), Some(service(0x200a)))
        );
        assert_eq!(
            (access.admit(Some(service(11)), Dot1Ad), trunk.leave(service(10))),
            (None, Some(service(10)))
        );
        // Frames may leave with a tag although untagged frames that arrive belong to the same VLAN.
        assert_eq!(vlans(&["3 pvid"]).leave(tag(3)), Some(tag(3)));
        assert_eq!(PortVlans::none().admit(Some(tag(1)), Dot1Q), None);
    }

    #[test]
    fn protocols_have_the_names_of_iproute2() {
        for (text, ether_type) in [("802.1Q", 0x8100), ("802.1ad", 0x88a8)] {
            let protocol: VlanProtocol = text.parse().expect(text);
            assert_eq!((protocol.to_string().as_str(), protocol.ether_type()), (text, ether_type));
            assert_eq!(serde_json::to_value(protocol).expect("a word"), text);
            assert_eq!(text.to_lowercase().parse(), Ok(protocol));
        }
        let error = "802.1w".parse::<VlanProtocol>().expect_err("spanning trees");
        assert_eq!(error, "\"802.1w\" is no protocol of VLAN tags: there are 802.1Q and 802.1ad");
    }
}
