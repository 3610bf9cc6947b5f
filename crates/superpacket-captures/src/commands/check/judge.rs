//! Compares a packet of the checked file with the packets of the original file for which it stands.

use std::collections::BTreeSet;

use superpacket::Simd;
use superpacket::checksum::{Sum, words};
use superpacket::segment::{Cwr, Gso, IpId, SegmentOptions, SegmentSize, Segmenter};
use superpacket::virtio::{flags, gso_type};
use superpacket::wire::{IpVersion, Layout, Outer, Protocol, Refusal, tcp, udp};

use super::fields::field_at;
use super::fragment_ids::FragmentIds;
use super::packet::{FilePacket, gso_kind, segments_of};
use super::rule::Rule;
use crate::commands::checksums::{Wrong, be16};

/// A violation of a rule that is not in the report yet.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) rule: Rule,
    pub(super) field: String,
    pub(super) origin: Option<u64>,
    pub(super) what: String,
}

/// Compares packets of the checked file with the packets of the original file for which they stand,
/// and collects the violations of rules.
pub(super) struct Judge {
    pub(super) simd: Simd,
    segmenter: Segmenter,
    pub(super) findings: Vec<Finding>,
    /// The rules that the packet at hand has violated so far, each with the name of the field.
    seen: BTreeSet<(Rule, String)>,
    fragment_ids: FragmentIds,
}

impl Judge {
    pub(super) fn new(simd: Simd) -> Self {
        Judge {
            simd,
            segmenter: Segmenter::new().with_simd(simd),
            findings: Vec::new(),
            seen: BTreeSet::new(),
            fragment_ids: FragmentIds::default(),
        }
    }

    /// Prepares for the next packet of the checked file.
    pub(super) fn begin(&mut self) {
        self.findings.clear();
        self.seen.clear();
    }

    /// Records a violation by the packet at hand, unless it has violated this rule in this field
    /// before.
    pub(super) fn note(
        &mut self,
        rule: Rule,
        field: &str,
        origin: Option<&FilePacket>,
        what: String,
    ) {
        if self.seen.insert((rule, field.to_owned())) {
            self.findings.push(Finding {
                rule,
                field: field.to_owned(),
                origin: origin.map(|packet| packet.number),
                what,
            });
        }
    }

    /// Checks the identification of a fragment that was made by the implementation under test.
    pub(super) fn judge_fragment_id(&mut self, packet: &FilePacket, origin: &FilePacket) {
        // Fragments that this program cuts all have the same identification, so only others are
        // checked.
        if packet.chosen_id.is_none()
            && let Some(id) = packet.id_for(origin)
            && let Err(what) = self.fragment_ids.note(id, origin)
        {
            self.note(Rule::FragmentId, "ipv6.fragment.id", Some(origin), what);
        }
    }

    /// Compares a packet of the checked file with the only packet of the original file for which it
    /// stands.
    pub(super) fn judge_single(&mut self, packet: &FilePacket, origin: &FilePacket) {
        let before = self.findings.len();
        let differs = self.compare_headers(packet, &packet.bytes, origin, None);
        self.compare_link(packet, origin);
        let (there, was) = (packet.bytes.len(), origin.bytes.len());
        if !differs && there != was && packet.payload().len() == origin.payload().len() {
            self.note(
                Rule::Length,
                "length",
                Some(origin),
                format!("it has {there} bytes, and had {was}"),
            );
        }
        // A checksum that cannot be verified must be unchanged.
        if let (Some(layout), Some(was)) = (&packet.layout, &origin.layout)
            && !packet.is_verifiable()
            && let (found, expected) = (
                be16(&packet.bytes, layout.checksum().into()),
                adjusted_checksum(packet, layout, origin, was),
            )
            && found != expected
        {
            self.note(
                Rule::Checksum,
                "checksum",
                Some(origin),
                found_and_expected(found, expected),
            );
        }
        if self.findings.len() > before || origin.is_valid(self.simd) {
            self.judge_alone(packet, false);
        } else if packet.is_valid(self.simd) && packet.bytes != origin.bytes {
            self.note(
                Rule::BadChecksum,
                "checksum",
                Some(origin),
                "it came with a wrong checksum, and left with a right one".to_owned(),
            );
        } else if packet.bytes != origin.bytes {
            self.note(
                Rule::BadChecksum,
                "checksum",
                Some(origin),
                "it came with a wrong checksum, and left with another".to_owned(),
            );
        }
    }

    /// Compares a packet of the checked file with the packets of the original file from which it
    /// was merged, and whose payload it has.
    pub(super) fn judge_merged(
        &mut self,
        packet: &FilePacket,
        origins: &[&FilePacket],
        may_be_cut_by_another: bool,
    ) {
        self.judge_alone(packet, true);
        self.judge_mergeable(origins);
        let Some(size) = self.judge_sizes(packet, origins) else { return };
        let (Some(layout), Some(layer)) = (&packet.layout, packet.layer) else { return };
        let mut gso = Gso::new(gso_kind(layout), size);
        let [first, second, ..] = origins else { return };
        let (first_layout, second_layout) = (first.layout, second.layout);
        if let (Some(one), Some(two)) = (first_layout, second_layout) {
            if (one.version, two.version) == (IpVersion::V4, IpVersion::V4)
                && first.id(one.network) == second.id(two.network)
            {
                gso = gso.with_id(IpId::Fixed);
            }
            let same_ids = |one: Option<Outer>, two: Option<Outer>| match (one, two) {
                (Some(one), Some(two))
                    if (one.version, two.version) == (IpVersion::V4, IpVersion::V4) =>
                {
                    first.id(one.network) == second.id(two.network)
                }
                _ => false,
            };
            if same_ids(one.outer, two.outer) {
                gso = gso.with_outer_id(IpId::Fixed);
            }
            if same_ids(one.nested, two.nested) {
                gso = gso.with_nested_id(IpId::Fixed);
            }
        }
        if first.flags() & second.flags() & tcp::CWR != 0 {
            gso = gso.with_cwr(Cwr::All);
        }
        if let Some(virtio) = packet.virtio.filter(|virtio| matches!(virtio.gso, Ok(Some(_))))
            && packet.flags() & tcp::CWR != 0
        {
            let of = if gso.cwr == Cwr::All { "all packets" } else { "the first packet alone" };
            if (virtio.header.gso_type & gso_type::ECN == 0) != (gso.cwr == Cwr::All) {
                let what = format!("{of} had CWR, and gso_type is {:#04x}", virtio.header.gso_type);
                self.note(Rule::GsoEcn, "gso_type", Some(first), what);
            }
        }
        if may_be_cut_by_another {
            if [gso.id, gso.outer_id, gso.nested_id].contains(&IpId::Fixed) {
                self.note(
                    Rule::IpIdFixed,
                    "ipv4.id",
                    Some(second),
                    "it has the same identification as the packet before it".to_owned(),
                );
            }
            if gso.cwr == Cwr::All {
                self.note(
                    Rule::CwrOnAll,
                    "tcp.flags",
                    Some(second),
                    "it has CWR like the packet before it".to_owned(),
                );
            }
        }
        // An unfinished checksum whose field does not hold the sum of the pseudo-header was
        // reported already. The packet is segmented without use of the field, to find other faults.
        let trust_seed = packet.virtio.is_none_or(|virtio| virtio.seed != Some(false));
        let segments = match segments_of(
            &mut self.segmenter,
            packet,
            layer,
            gso,
            &SegmentOptions::default(),
            trust_seed,
        ) {
            Ok(segments) => segments,
            Err(error) => {
                // Otherwise the lengths are wrong, and this was reported.
                if !self.seen.contains(&(Rule::Length, "length".to_owned())) {
                    self.note(
                        Rule::Length,
                        "length",
                        None,
                        format!("it cannot be cut again: {error}"),
                    );
                }
                return;
            }
        };
        for (index, (origin, bytes)) in origins.iter().zip(segments).enumerate() {
            let segment = packet.segment(index as u32 + 1, bytes);
            let last = index + 1 == origins.len();
            if let Some(wrong) = origin.wrong_checksum(self.simd) {
                // With NEEDS_CSUM, Linux verifies no transport checksum, neither inner nor outer.
                // It verifies the checksum of every IPv4 header (`inet_gro_receive`).
                let is_unverified = wrong == Wrong::Transport
                    && origin
                        .virtio
                        .is_some_and(|virtio| virtio.header.flags & flags::NEEDS_CSUM != 0);
                let rule = if is_unverified { Rule::Unverified } else { Rule::BadChecksum };
                self.note(
                    rule,
                    "checksum",
                    Some(origin),
                    "it came with a wrong checksum, and was merged".to_owned(),
                );
            }
            self.compare_headers(&segment, &packet.bytes, origin, Some(last));
            self.compare_link(packet, origin);
        }
    }

    /// Reports packets of the original file that should not have been merged.
    fn judge_mergeable(&mut self, origins: &[&FilePacket]) {
        for origin in origins {
            let refusal = origin
                .layout
                .and_then(|layout| layout.refusal)
                .filter(|refusal| *refusal != Refusal::NoLength);
            // Linux ignores a wrong outer UDP length. Every other reason not to merge is reported
            // by its own name.
            let may_be_outer_length = matches!(refusal, None | Some(Refusal::UdpLength));
            if may_be_outer_length && has_wrong_outer_length(origin) {
                let what = "it was merged, although its outer UDP length is wrong".to_owned();
                self.note(Rule::OuterLength, "outer udp.length", Some(origin), what);
            } else if let Some(refusal) = refusal {
                self.note(
                    Rule::NeverMerges,
                    refusal.name(),
                    Some(origin),
                    format!("it was merged, although: {refusal}"),
                );
            }
            let end = origin.layout.map_or(usize::MAX, |layout| layout.end as usize);
            if origin.bytes.len() > end {
                let what = format!(
                    "it was merged, with {} bytes behind its IP packet",
                    origin.bytes.len() - end
                );
                self.note(Rule::NeverMerges, "padding", Some(origin), what);
            }
            if origin.flags() & (tcp::SYN | tcp::RST) != 0 {
                let what = format!("its flags are {:#04x}, and it was merged", origin.flags());
                self.note(Rule::ControlFlags, "tcp.flags", Some(origin), what);
            }
        }
    }

    /// Compares the payload sizes of the merged packets with each other and with the `gso_size` of
    /// the result. Returns the segment size if the payload sizes allow a merged packet.
    fn judge_sizes(&mut self, packet: &FilePacket, origins: &[&FilePacket]) -> Option<SegmentSize> {
        let (last, others) = origins.split_last()?;
        let size = others.first()?.payload().len();
        let odd = others.iter().find(|origin| origin.payload().len() != size);
        let odd = odd.or(Some(last).filter(|last| last.payload().len() > size));
        if let Some(odd) = odd {
            let what = format!(
                "its payload has {} bytes, and that of the first {size}",
                odd.payload().len()
            );
            self.note(Rule::SegmentSizes, "payload", Some(odd), what);
        }
        if let Some(Ok(Some(gso))) = packet.virtio.map(|virtio| virtio.gso)
            && gso.size.get() != size
        {
            let what = format!(
                "gso_size is {}, and the payload of the first has {size} bytes",
                gso.size.get()
            );
            self.note(Rule::GsoSize, "gso_size", others.first().copied(), what);
        }
        if odd.is_some() { None } else { SegmentSize::new(size) }
    }

    fn compare_link(&mut self, packet: &FilePacket, origin: &FilePacket) {
        if packet.link != origin.link {
            let what = "the bytes before its IP header differ".to_owned();
            self.note(Rule::LinkHeader, "link header", Some(origin), what);
        }
    }

    /// Compares the headers of an output packet, or of one segment of it, with those of the packet
    /// it was made of, `origin`. Returns whether they differ. `whole` is the complete output
    /// packet. `last` is `None` if the output packet is not merged; otherwise it tells whether
    /// `packet` is its last segment.
    fn compare_headers(
        &mut self,
        packet: &FilePacket,
        whole: &[u8],
        origin: &FilePacket,
        last: Option<bool>,
    ) -> bool {
        let (Some(layout), Some(was), Some(layer)) = (&packet.layout, &origin.layout, packet.layer)
        else {
            if packet.bytes != origin.bytes && (packet.layout.is_some() || origin.layout.is_some())
            {
                self.note(
                    Rule::IpHeader,
                    "headers",
                    Some(origin),
                    "its headers can no longer be read, or could not be read before".to_owned(),
                );
                return true;
            }
            return self.compare_unparsed(packet, origin);
        };
        let (now, then) = (packet.headers(), origin.headers());
        if now.len() != then.len()
            || layout.network != was.network
            || layout.transport != was.transport
        {
            let (name, rule) = match () {
                () if layout.outermost() != was.outermost() => ("link header", Rule::LinkHeader),
                () if layout.network != was.network => ("outer headers", Rule::TunnelHeader),
                () if layout.transport != was.transport => ("ip options", Rule::IpHeader),
                () => ("tcp.options", Rule::TcpOptions),
            };
            self.note(
                rule,
                name,
                Some(origin),
                format!("headers of {} bytes became {}", then.len(), now.len()),
            );
            return true;
        }
        let mut checksums = None;
        let mut differs = false;
        for (place, (&now_byte, &then_byte)) in now.iter().zip(then).enumerate() {
            if now_byte == then_byte {
                continue;
            }
            let field = field_at(then, was, layer, place, now_byte ^ then_byte);
            if field.is_checksum {
                checksums.get_or_insert((place, field));
                continue;
            }
            differs = true;
            let flags = usize::from(was.transport) + tcp::FLAGS;
            if was.protocol == Protocol::Tcp && place == flags {
                self.judge_flags(now_byte, then_byte, origin, last);
                continue;
            }
            // Linux merges such packets, and the result has the header of the first one.
            let rule = match field.rule {
                Rule::Urgent if packet.part.is_some_and(|part| part > 1) && last.is_some() => {
                    Rule::UrgentMerged
                }
                Rule::Length
                    if last.is_some()
                        && field.name == "outer udp.length"
                        && has_wrong_outer_length(origin) =>
                {
                    Rule::OuterLength
                }
                rule => rule,
            };
            let what = match field_values(now, then, place, &field.name) {
                Some((now, then)) => format!("it is {now}, and was {then}"),
                None => format!("byte {place} is {now_byte:#04x}, and was {then_byte:#04x}"),
            };
            self.note(rule, &field.name, Some(origin), what);
        }
        if let Some((place, field)) = checksums.filter(|_| !differs && origin.is_valid(self.simd)) {
            self.judge_changed_checksum(
                packet,
                whole,
                origin,
                place & !1,
                &field.name,
                last.is_some(),
            );
        }
        differs
    }

    /// Reports a checksum that has changed although all other fields are equal.
    fn judge_changed_checksum(
        &mut self,
        packet: &FilePacket,
        whole: &[u8],
        origin: &FilePacket,
        place: usize,
        name: &str,
        merged: bool,
    ) {
        let payload_is_same = packet.payload() == origin.payload();
        let (now, then) =
            (be16(&packet.bytes, place).unwrap_or(0), be16(&origin.bytes, place).unwrap_or(0));
        if !payload_is_same || whole.is_empty() {
            return;
        }
        if merged || packet.is_valid(self.simd) {
            let udp_zero = name.ends_with("udp.checksum") && now == 0 && then == 0xffff;
            let none = name.ends_with("udp.checksum") && (now == 0 || then == 0);
            let rule = match () {
                () if udp_zero => Rule::UdpZero,
                () if none => Rule::Checksum,
                () => Rule::CanonicalChecksum,
            };
            self.note(rule, name, Some(origin), format!("it is {now:#06x}, and was {then:#06x}"));
        } else {
            self.note(
                if name.ends_with("ipv4.checksum") { Rule::IpChecksum } else { Rule::Checksum },
                name,
                Some(origin),
                found_and_expected(Some(now), Some(then)),
            );
        }
    }

    fn judge_flags(&mut self, now: u8, then: u8, origin: &FilePacket, last: Option<bool>) {
        const ENDS: u8 = tcp::PSH | tcp::FIN;
        let difference = now ^ then;
        let what = format!("they are {now:#04x}, and were {then:#04x}");
        if difference & ENDS != 0 {
            let rule =
                if last == Some(false) && then & ENDS != 0 { Rule::PushEnds } else { Rule::Flags };
            self.note(rule, "tcp.flags", Some(origin), what.clone());
        }
        if difference & tcp::CWR != 0 {
            // A `gso_type` without ECN means that all segments have CWR, but Linux sets CWR only in
            // the first segment.
            let cut_by_linux =
                last.is_none() && then & tcp::CWR != 0 && origin.part.is_some_and(|part| part > 1);
            let rule = if cut_by_linux { Rule::CwrOnAll } else { Rule::Cwr };
            self.note(rule, "tcp.flags", Some(origin), what.clone());
        }
        if difference & !(ENDS | tcp::CWR) != 0 {
            self.note(Rule::Flags, "tcp.flags", Some(origin), what);
        }
    }

    /// Compares packets whose headers cannot be read, byte by byte. Returns whether they differ.
    fn compare_unparsed(&mut self, packet: &FilePacket, origin: &FilePacket) -> bool {
        if origin.part.is_some()
            && packet.equals_without_fragment_flags(origin)
            && packet.bytes != origin.bytes
        {
            let what =
                "the datagram has DF or the reserved bit, but its fragment does not".to_owned();
            self.note(Rule::FragmentFlags, "ipv4.fragment", Some(origin), what);
            return true;
        }
        let what = match origin.first_difference(packet) {
            Some(place) => format!(
                "byte {place} is {:#04x}, and was {:#04x}",
                packet.bytes[place], origin.bytes[place]
            ),
            None if packet.bytes.len() != origin.bytes.len() => {
                format!("it has {} bytes, and had {}", packet.bytes.len(), origin.bytes.len())
            }
            None => return false,
        };
        self.note(Rule::Bytes, "packet", Some(origin), what);
        true
    }
}

/// Returns whether the outer UDP length of a packet in a tunnel differs from the real length. Linux
/// ignores that field.
fn has_wrong_outer_length(packet: &FilePacket) -> bool {
    let Some((layout, outer)) = packet.layout.and_then(|layout| Some((layout, layout.outer?)))
    else {
        return false;
    };
    let start = usize::from(outer.transport);
    outer.tunnel.is_udp()
        && be16(&packet.bytes, start + udp::LENGTH).map(usize::from)
            != (layout.end as usize).checked_sub(start)
}

/// Returns the transport checksum of the original packet, adjusted to the transport header that the
/// packet has now: Linux may have changed flags when it segmented.
fn adjusted_checksum(
    packet: &FilePacket,
    layout: &Layout,
    origin: &FilePacket,
    was: &Layout,
) -> Option<u16> {
    let checksum = be16(&origin.bytes, was.checksum().into())?;
    // The sum of the transport header's bytes before and after the checksum field.
    let sum = |packet: &FilePacket, layout: &Layout| {
        let field = usize::from(layout.checksum());
        let before = packet.bytes.get(layout.transport.into()..field)?;
        let behind = packet.bytes.get(field + 2..layout.payload.into())?;
        Some((words(before).fold(), words(behind).fold()))
    };
    let ((before, behind), (was_before, was_behind)) = (sum(packet, layout)?, sum(origin, was)?);
    if (before, behind) == (was_before, was_behind) {
        return Some(checksum);
    }
    let total =
        Sum::new(!checksum).subtract(was_before).subtract(was_behind).add(before).add(behind);
    Some(total.checksum())
}

/// Returns a text with the value of a wrong checksum and the value that it should have.
pub(super) fn found_and_expected(found: Option<u16>, right: Option<u16>) -> String {
    format!("it is {:#06x}, and should be {:#06x}", found.unwrap_or(0), right.unwrap_or(0))
}

/// Returns the values, as text, that a 16-bit field has in the two packets `now` and `then`. The
/// field contains the byte at `place`, and is called `name`. `None` for fields of another size.
fn field_values(now: &[u8], then: &[u8], place: usize, name: &str) -> Option<(String, String)> {
    let is = |names: &[&str]| names.iter().any(|end| name.ends_with(end));
    // Headers and their 16-bit fields begin at even offsets. The first byte that differs may be
    // either byte of a field.
    let pair = |start: usize| Some((be16(now, start)?, be16(then, start)?));
    let start = place & !1;
    if is(&[".id", "_length", ".window", "udp.length", ".urgent"]) {
        let (now, then) = pair(start)?;
        return Some((now.to_string(), then.to_string()));
    }
    if is(&[".fragment"]) {
        let (now, then) = pair(start)?;
        return Some((format!("{now:#06x}"), format!("{then:#06x}")));
    }
    None
}
