//! Checks a packet of the checked file by itself: its header, lengths and checksums.

use superpacket::checksum::ipv4_header;
use superpacket::packet::Layer;
use superpacket::segment::GsoSupport;
use superpacket::wire::{IpVersion, Layout, Refusal, ipv4};

use super::fields::field_at;
use super::judge::{Judge, found_and_expected};
use super::packet::FilePacket;
use super::rule::Rule;
use super::virtio::OuterChecksum;
use crate::commands::checksums::{Wrong, be16, check};

impl Judge {
    /// Checks a packet of the checked file by itself: its `virtio_net_hdr`, lengths and checksums.
    /// `merged` is true if the packet stands for several packets of the original file.
    pub(super) fn judge_alone(&mut self, packet: &FilePacket, merged: bool) {
        self.judge_virtio_header(packet, merged);
        let (Some(layout), Some(layer)) = (&packet.layout, packet.layer) else { return };
        let (claimed, actual) = (layout.end as usize, packet.bytes.len());
        if merged
            && (claimed < actual
                || matches!(layout.refusal, Some(Refusal::Truncated | Refusal::UdpLength)))
        {
            self.note(
                Rule::Length,
                "length",
                None,
                format!(
                    "by its length fields it ends at byte {claimed}, and it has {actual} bytes"
                ),
            );
        } else if let Some(refusal) = layout.refusal.filter(|_| merged)
            // BIG TCP packets rightly have an IP length of 0.
            && !(refusal == Refusal::NoLength && actual > usize::from(u16::MAX))
        {
            self.note(
                Rule::NeverMerges,
                refusal.name(),
                None,
                format!("the merged packet itself must not merge: {refusal}"),
            );
        }
        self.judge_checksums(packet, layout, layer);
    }

    /// Checks the `virtio_net_hdr` of a packet of the checked file, if it has one.
    pub(super) fn judge_virtio_header(&mut self, packet: &FilePacket, merged: bool) {
        if let Some(virtio) = packet.virtio {
            match virtio.gso {
                Err(error) => self.note(Rule::VirtioHeader, error.field(), None, error.to_string()),
                Ok(None) if merged => {
                    let header = virtio.header;
                    let what = format!(
                        "its gso_type is {:#04x} and its gso_size {}",
                        header.gso_type, header.gso_size
                    );
                    self.note(Rule::GsoType, "gso_type", None, what);
                }
                Ok(gso) => {
                    let length = packet.layout.map_or(0, |layout| layout.payload);
                    if gso.is_some() && virtio.header.hdr_len != length {
                        let what = format!(
                            "hdr_len is {}, and the headers are {length} bytes",
                            virtio.header.hdr_len
                        );
                        self.note(Rule::HeaderLength, "hdr_len", None, what);
                    }
                    let unsupported = packet
                        .layout
                        .filter(|_| merged)
                        .and_then(|layout| GsoSupport::LINUX.refuses_headers(&layout));
                    if let Some(unsupported) = unsupported {
                        self.note(
                            Rule::Receiver,
                            "gso_type",
                            None,
                            format!("Linux cannot segment {unsupported}"),
                        );
                    }
                }
            }
            if virtio.seed == Some(false) {
                let what = "the field does not hold the pseudo-header's sum over the length of the whole packet".to_owned();
                self.note(Rule::PartialChecksum, "checksum", None, what);
            }
            match virtio.outer {
                Some(OuterChecksum::Unseeded) => {
                    let what = "UDP_TUNNEL_CSUM is set, and the field does not hold the sum of the outer pseudo-header".to_owned();
                    self.note(Rule::PartialChecksum, "outer udp.checksum", None, what);
                }
                Some(OuterChecksum::Unnamed) => {
                    let what = "the outer UDP checksum is not 0, and UDP_TUNNEL_CSUM is not set"
                        .to_owned();
                    self.note(Rule::VirtioHeader, "flags", None, what);
                }
                Some(OuterChecksum::Seeded) | None => {}
            }
        }
    }

    fn judge_checksums(&mut self, packet: &FilePacket, layout: &Layout, layer: Layer) {
        // An unfinished checksum whose field does not hold the sum of the pseudo-header was
        // reported already. The checksum that results is wrong too.
        if packet.virtio.is_some_and(|virtio| !virtio.is_seeded()) || packet.cut {
            return;
        }
        let outers =
            ["outer ipv4.checksum", "nested ipv4.checksum"].into_iter().zip(layout.outers());
        let outers = outers.map(|(name, outer)| (name, outer.network, outer.version));
        for (name, network, version) in
            outers.chain([("ipv4.checksum", layout.network, layout.version)])
        {
            let header = packet.bytes.get(usize::from(network)..).unwrap_or(&[]);
            let length = usize::from(header.first().copied().unwrap_or(0) & 15) * 4;
            let (found, right) = (
                be16(header, ipv4::CHECKSUM),
                header.get(..length.max(ipv4::HEADER_LENGTH)).map(ipv4_header),
            );
            // The value 0xFFFF is valid where 0 is right.
            if version == IpVersion::V4
                && found != right
                && (found, right) != (Some(0xffff), Some(0))
            {
                self.note(Rule::IpChecksum, name, None, found_and_expected(found, right));
            }
        }
        if check(&packet.bytes, layer, layout, None, self.simd) == Err(Wrong::Transport) {
            let field =
                field_at(&packet.bytes, layout, layer, usize::from(layout.checksum()), 0xff);
            let found = be16(&packet.bytes, usize::from(layout.checksum())).unwrap_or(0);
            self.note(
                Rule::Checksum,
                &field.name,
                None,
                format!("it is {found:#06x}, which is wrong"),
            );
        }
    }
}
