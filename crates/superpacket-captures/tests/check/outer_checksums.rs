//! The outer UDP checksum of a super-packet in a tunnel: with `UDP_TUNNEL_CSUM` it is the sum of
//! the pseudo-header, to which Linux adds the sum of each segment. The tests of superpacket-oracle
//! try these with the kernel.

use super::*;

/// Returns runs of four packets in tunnels, with an outer checksum of this form.
fn in_tunnels(outer: Checksum) -> Vec<Vec<Frame>> {
    let inner = [Frame::tcp4(1, 300), Frame::tcp6(1, 300), Frame::udp4(300)];
    let tunnels: [fn(Frame) -> Frame; 3] = [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve];
    let frames = inner.into_iter().flat_map(|inner| tunnels.map(|through| through(inner.clone())));
    frames.map(|frame| frame.with(|frame| frame.outer_udp_mut().checksum = outer).run(4)).collect()
}

/// Returns the packet into which a kernel merges them, with a header of 24 bytes.
fn left(frames: &[Frame], outer: Checksum) -> (Vec<u8>, Header) {
    let (frame, header) = merged(frames);
    let frame = frame.with(|frame| frame.outer_udp_mut().checksum = outer);
    let (network, inner) = (frame.offsets().outer.expect("a tunnel"), frame.offsets().network);
    let over_ipv4 = matches!(frame.tunnel.as_ref().expect("a tunnel").ip, Ip::V4(_));
    let tunnel = if over_ipv4 { gso_type::UDP_TUNNEL_IPV4 } else { gso_type::UDP_TUNNEL_IPV6 };
    let header = Header {
        flags: header.flags | if outer == Checksum::Zero { 0 } else { flags::UDP_TUNNEL_CSUM },
        gso_type: header.gso_type | tunnel,
        outer_th_offset: network as u16 + if over_ipv4 { 20 } else { 40 },
        inner_nh_offset: inner as u16,
        ..header
    };
    (frame.to_bytes(), header)
}

fn rules(frames: &[Frame], (bytes, header): (Vec<u8>, Header)) -> Vec<(&'static str, String)> {
    let original = in_memory(frames);
    let report = check_records(
        Format::Tunnel,
        &[(bytes, header)],
        Input::from(&original),
        Strictness::Linux,
    );
    assert_eq!((report.super_packets, report.merged), (1, 3));
    report.described.into_iter().map(|violation| (violation.rule.name(), violation.field)).collect()
}

#[test]
fn the_sum_of_the_pseudo_header_is_right_and_nothing_else_is() {
    for frames in in_tunnels(Checksum::Right) {
        assert_eq!(rules(&frames, left(&frames, Checksum::Partial)), []);
        for other in [
            Checksum::Right,
            Checksum::Wrong,
            Checksum::PartialWithoutLength,
            Checksum::Raw(0x1234),
        ] {
            assert_eq!(
                rules(&frames, left(&frames, other)),
                [("partial-checksum", "outer udp.checksum".to_owned())],
                "{other:?}"
            );
        }
        // There is no checksum, although the packets had one.
        assert_eq!(
            rules(&frames, left(&frames, Checksum::Zero)),
            [("checksum", "outer udp.checksum".to_owned())]
        );
        // There is a checksum without its flag.
        let (bytes, header) = left(&frames, Checksum::Partial);
        let header = Header { flags: header.flags & !flags::UDP_TUNNEL_CSUM, ..header };
        assert_eq!(rules(&frames, (bytes, header)), [("virtio-header", "flags".to_owned())]);
    }
    for frames in in_tunnels(Checksum::Zero) {
        assert_eq!(rules(&frames, left(&frames, Checksum::Zero)), []);
        // There is a checksum, although the packets had none.
        assert_eq!(
            rules(&frames, left(&frames, Checksum::Partial)),
            [("checksum", "outer udp.checksum".to_owned())]
        );
        let (bytes, header) = left(&frames, Checksum::Zero);
        let header = Header { flags: header.flags | flags::UDP_TUNNEL_CSUM, ..header };
        assert_eq!(
            rules(&frames, (bytes, header)).first().map(|found| found.0),
            Some("virtio-header")
        );
    }
}

/// An original with either form of checksum is cut into the packets that were merged.
#[test]
fn an_original_of_either_form_is_cut_alike() {
    for (outer, forms) in [
        (Checksum::Right, &[Checksum::Partial, Checksum::Right][..]),
        (Checksum::Zero, &[Checksum::Zero]),
    ] {
        for frames in in_tunnels(outer) {
            let cut = in_memory(&frames);
            for &form in forms {
                let file = records(Format::Tunnel, &[left(&frames, form)]);
                let report = judge(Input::from(&cut), stream(&file));
                assert_eq!(
                    (report.violations, report.segments),
                    (0, 4),
                    "{form:?}: {:#?}",
                    report.described
                );
            }
        }
    }
}
