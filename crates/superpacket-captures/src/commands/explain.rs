//! The reasons why packets left the aggregator, in plain words.

use superpacket::aggregate::Reason;

/// Explains a reason, given by its name in reports, in one sentence; `None` for a name that this
/// version does not know.
pub fn explain(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "link_type" => "Its link type is not one that can be read.",
        "snap_length" => "The capture has only the first bytes of it.",
        "not_ip" => "It is not IP, or its link header is unknown.",
        "truncated" => "It ends before its headers or its IP length say.",
        "malformed" => "One of its headers contradicts itself.",
        "header_too_long" => "Its headers are too long.",
        "fragment" => "It is an IP fragment.",
        "ip_options" => "Its IPv4 header has options.",
        "reserved_bit" => "The reserved bit of its IPv4 header is set.",
        "no_length" => "Its IP length field is 0.",
        "padded" => "Padding follows it that may not be removed.",
        "protocol" => "Packets of its protocol never merge.",
        "tunnel" => "Its tunnel is of a kind that does not merge.",
        "bad_ip_checksum" => "Its IPv4 header checksum is wrong.",
        "bad_checksum" => "Its transport or tunnel checksum is wrong.",
        "non_canonical_checksum" => "Its checksum is valid, but could not be restored.",
        "partial_checksum" => "Its partial checksum does not fit its headers.",
        "cannot_segment" => "The receiver could not segment it if it were merged.",
        "alone" => "It came alone, so there was nothing to merge with.",
        "super_packet" => "It is a super-packet of a kind that does not merge.",
        "tcp_flags" => "It opens, resets or interrupts a TCP connection.",
        "no_payload" => "It has no payload, such as a pure ACK.",
        "udp_off" => "UDP is not merged with these settings.",
        "udp_length" => "Its UDP length differs from its IP length.",
        "udp_no_checksum" => "It is UDP without a checksum.",
        "dccp_type" => "It is DCCP of a kind that does not merge.",
        "dccp_coverage" => "Its DCCP checksum covers more than there is.",
        "final_destination" => "Its IPv6 headers hide the final address.",
        "tcp_options" => "It has TCP options that LRO does not merge.",
        "congestion" => "It reports congestion, which LRO passes on at once.",
        "not_lro" => "LRO does not merge its protocol or tunnel.",
        "no_descriptor" => "LRO had no room for one more flow.",
        "duplicate_ack" => "It repeats the last acknowledgement.",
        "window_update" => "It only changes the TCP window.",
        "ack_older" => "Its acknowledgement is older than the last one.",
        "push" => "The sender marked the end of its data (PSH or FIN).",
        "short_segment" => "It ends with a segment shorter than the others.",
        "byte_limit" => "It could not take more bytes.",
        "packet_limit" => "It could not take more packets.",
        "fragment_limit" => "It could not take more buffers.",
        "poll_end" => "The poll ended, so nothing was held any longer.",
        "hold_time" => "It was held for the longest time allowed.",
        "requested" => "The program asked for all held packets.",
        "evicted" => "A newer flow needed its place.",
        "memory_limit" => "Held packets had filled the memory.",
        "overtaken" => "A later packet of its flow had to pass at once.",
        "sequence" => "The next packet was lost, repeated or out of order.",
        "longer_segment" => "The next packet was longer than the first.",
        "acknowledgement" => "The next packet acknowledged something else.",
        "window" => "The next packet had another TCP window.",
        "flags_changed" => "The next packet had other TCP flags.",
        "options_changed" => "The next packet had other TCP options or timestamps.",
        "timestamp_older" => "The next packet had an older timestamp.",
        "ip_id" => "The next packet's IPv4 identification did not follow.",
        "ttl" => "The next packet had another TTL or hop limit.",
        "tos" => "The next packet had another traffic class.",
        "dont_fragment" => "The next packet's don't-fragment bit differed.",
        "flow_label" => "The next packet had another IPv6 flow label.",
        "extension_header" => "An IPv6 extension header changed or does not merge.",
        "link_header" => "The next packet's link header differed.",
        "tunnel_header" => "The next packet's tunnel header differed.",
        "header_changed" => "Another header field of the next packet differed.",
        "checksum_form" => "The next packet's checksum was of another form.",
        _ => return None,
    })
}

/// Returns whether packets that leave the aggregator for this reason are never held, so that they
/// are not merged.
pub fn is_never_held(reason: &str) -> bool {
    // The reasons of packets that were held begin with `Push`.
    Reason::ALL.iter().any(|&known| known < Reason::Push && known.name() == reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::totals::PASS_REASONS;

    #[test]
    fn every_reason_is_explained_in_one_short_sentence() {
        for name in Reason::ALL.iter().map(|reason| reason.name()).chain(PASS_REASONS) {
            let words = explain(name).unwrap_or_else(|| panic!("{name} is not explained"));
            assert!(words.ends_with('.') && words.matches('.').count() == 1, "{words}");
            assert!(words.len() <= 60, "{words}");
        }
        assert_eq!(explain("weather"), None);
    }

    #[test]
    fn packets_without_payload_are_never_held() {
        assert!(is_never_held("no_payload") && is_never_held("ack_older"));
        assert!(!is_never_held("push") && !is_never_held("poll_end"));
    }
}
