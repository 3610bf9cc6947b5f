//! The rules by which packets are judged, each with a stable name and a description.

use serde::{Serialize, Serializer};

/// Set of rules by which packets are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// The rules that Linux keeps. Its GRO merges packets whose identifications are all the same,
    /// and lets a packet that it refuses overtake held packets of the same flow.
    #[default]
    Linux,
    /// The rules that this project follows: every byte of the original packets can be restored from
    /// a merged packet and its header, and packets of a flow keep their order.
    Reversible,
}

impl Strictness {
    /// Returns the name used in options and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Strictness::Linux => "linux",
            Strictness::Reversible => "reversible",
        }
    }
}

impl Serialize for Strictness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

macro_rules! rules {
    ($($(#[$level:ident])? $variant:ident $name:literal $sentence:literal)*) => {
        /// A rule of faithful aggregation or segmentation, which a packet can violate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = $sentence] $variant,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Rule] = &[$(Rule::$variant),*];

            /// Returns the name that reports and JSON use. It does not change.
            pub const fn name(self) -> &'static str {
                match self { $(Rule::$variant => $name),* }
            }

            /// Returns a sentence that states the rule.
            pub const fn sentence(self) -> &'static str {
                match self { $(Rule::$variant => $sentence),* }
            }

            /// Returns the least strict [`Strictness`] that includes the rule.
            pub const fn strictness(self) -> Strictness {
                match self { $(Rule::$variant => rules!(@level $($level)?)),* }
            }
        }
    };
    (@level reversible) => { Strictness::Reversible };
    (@level) => { Strictness::Linux };
}

rules! {
    Bytes "bytes" "The payload of a packet consists of the payloads of the packets for which it stands, in order."
    Lost "lost" "Every packet of the original leaves, alone or merged with others."
    Invented "invented" "A packet that leaves stands for packets of the original, each of which leaves once."
    Order "order" "The packets of a flow leave in the order in which they came."
    #[reversible] RefusedOrder "refused-order" "A packet that cannot merge, or that Linux counts as another flow by its tags, labels or tunnel headers, does not overtake held packets of its flow."
    #[reversible] PairOrder "pair-order" "A packet whose ports are not known, such as a fragment, keeps order with the flows between its addresses."
    SegmentSizes "segment-sizes" "The payloads in a merged packet have the same size; the last may be shorter."
    GsoSize "gso-size" "gso_size is the payload in bytes of each packet that merged, except the last."
    GsoType "gso-type" "The header of a merged packet says how to cut it."
    Receiver "receiver" "Linux can segment a merged packet that has a header: it is not in PPPoE or MPLS, nor behind more than two VLAN tags, nor behind a tag of a type other than 0x8100 and 0x88a8."
    GsoEcn "gso-ecn" "A merged packet has the ECN bit (0x80) in its gso_type if its first packet alone has CWR, but not if all have it."
    VirtioHeader "virtio-header" "A virtio_net_hdr contradicts neither itself nor its packet."
    #[reversible] HeaderLength "header-length" "hdr_len of a merged packet is the length of its headers."
    Length "length" "The length fields of a packet agree with its length and with each other."
    #[reversible] OuterLength "outer-length" "A packet in a tunnel whose outer UDP length is wrong does not merge: Linux writes the right one."
    IpChecksum "ip-checksum" "The checksum of each IPv4 header is right."
    Checksum "checksum" "The checksum of each TCP, UDP or DCCP packet and of each tunnel is right. It covers the final destination of a route, and a home address."
    PartialChecksum "partial-checksum" "With NEEDS_CSUM the checksum field holds the pseudo-header's sum, not inverted, over the whole length; with UDP_TUNNEL_CSUM so does the outer UDP checksum."
    UdpZero "udp-zero" "A computed UDP checksum of 0 is sent as 0xFFFF, since 0 means that there is none."
    #[reversible] CanonicalChecksum "canonical-checksum" "A checksum that is valid but not canonical (0xFFFF in place of 0) is restored unchanged."
    BadChecksum "bad-checksum" "A packet whose checksum is wrong is neither merged nor repaired."
    #[reversible] Unverified "unverified" "A packet with NEEDS_CSUM whose partial or outer checksum is wrong does not merge: Linux verifies neither of these."
    NeverMerges "never-merges" "A packet with IPv4 options, the reserved bit, padding or a false length does not merge."
    ControlFlags "control-flags" "A packet with SYN or RST does not merge."
    PushEnds "push-ends" "A packet with PSH or FIN is the last of its merged packet."
    Flags "flags" "All TCP flags except PSH, FIN and CWR are the same as in every original packet; PSH and FIN are those of the last."
    Cwr "cwr" "CWR of a super-packet is that of its first packet alone, or of all packets (accurate ECN) if all have it."
    #[reversible] CwrOnAll "cwr-on-all" "Packets that all have CWR do not merge: they cannot be restored through a virtio_net_hdr, since Linux sets CWR on the first segment alone."
    Sequence "sequence" "The sequence numbers of the packets follow each other."
    Acknowledgement "acknowledgement" "The acknowledgement number is the same as in every original packet."
    Window "window" "The window is the same as in every original packet."
    Urgent "urgent" "The urgent pointer is the same as in every original packet."
    #[reversible] UrgentMerged "urgent-merged" "Packets with different urgent pointers do not merge: Linux keeps the first one's."
    TcpOptions "tcp-options" "The TCP options are the same as in every original packet, byte for byte."
    IpId "ip-id" "IPv4 identifications increase by one per packet, or are the same in all packets."
    #[reversible] IpIdFixed "ip-id-fixed" "Packets with the same identification do not merge: they cannot be restored through a virtio_net_hdr."
    FragmentId "fragment-id" "The fragments of an IPv6 datagram have one identification, which no other datagram between its addresses has."
    #[reversible] FragmentFlags "fragment-flags" "DF and the reserved bit of a datagram are those of its fragments: Linux clears both."
    DontFragment "dont-fragment" "The fragment field of IPv4 (DF) is the same as in every original packet."
    Ttl "ttl" "TTL or hop limit is the same as in every original packet."
    TrafficClass "traffic-class" "TOS or traffic class, including its ECN bits, is the same as in every original packet."
    FlowLabel "flow-label" "The IPv6 flow label is the same as in every original packet."
    IpHeader "ip-header" "Version, header length, options, extension headers, protocol and addresses are the same as in every original packet."
    Transport "transport" "Ports, and all other fields of a transport header, are the same as in every original packet."
    LinkHeader "link-header" "Addresses, tags and labels before the IP header are the same as in every original packet."
    TunnelHeader "tunnel-header" "The headers of a tunnel are the same as in every original packet."
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_unique_name_and_a_sentence() {
        let mut names: Vec<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
        for rule in Rule::ALL {
            assert!(
                rule.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{rule:?}"
            );
            assert!(rule.sentence().ends_with('.'), "{rule:?}");
        }
        assert_eq!(Rule::IpIdFixed.strictness(), Strictness::Reversible);
        assert_eq!(Rule::IpId.strictness(), Strictness::Linux);
    }
}
