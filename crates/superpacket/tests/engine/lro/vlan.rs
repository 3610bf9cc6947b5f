//! VLAN tags: in the frame with right header positions, or stripped as part of the flow.

use superpacket::aggregate::Reason;
use superpacket::packet::VlanTag;
use superpacket_traffic::frame::{Frame, Mpls, Vlan};

use super::{assert_merged, assert_merges, both_modes};
use crate::support::*;

const SERVICE: Vlan = Vlan { tpid: 0x88a8, pcp: 3, dei: false, vid: 10 };

fn stripped(frame: &Frame, tag: Option<VlanTag>) -> Packet {
    Packet { vlan: tag, ..frame.into() }
}

#[test]
fn an_unstripped_tag_moves_every_header() {
    // Fragments mode pointed at the tag instead of IP, linear mode never joined (sources 000 and
    // 001).
    for policy in both_modes() {
        for frame in [
            Frame::tcp4(1, 1001).tagged(7),
            Frame::tcp4(1, 1000).with_timestamps(1, 2).tagged(7),
            Frame::tcp6(1, 1000).tagged(7),
        ] {
            let offsets = frame.offsets();
            let run = run(policy, &packets(&frame.run(10)));
            assert_eq!(run.reasons(), [Reason::PollEnd]);
            assert_merged(&run.outputs[0], 1, 10 * frame.payload.len(), 10);
            let layout = run.outputs[0].metadata.layout.expect("a layout");
            assert_eq!(layout.network, 18);
            assert_eq!(
                (usize::from(layout.transport), usize::from(layout.payload)),
                (offsets.transport, offsets.payload)
            );
            assert_eq!(run.outputs[0].bytes[12..16], [0x81, 0, 0, 7]);
        }
    }
}

#[test]
fn stacked_tags_move_every_header() {
    let frame = Frame::tcp4(1, 1001).with(|frame| frame.vlans.push(SERVICE)).tagged(7);
    for policy in both_modes() {
        let run = run(policy, &packets(&frame.run(10)));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_merged(&run.outputs[0], 1, 10_010, 10);
        assert_eq!(run.outputs[0].metadata.layout.expect("a layout").network, 22);
        assert_eq!(run.outputs[0].bytes[12..20], [0x88, 0xa8, 0x60, 10, 0x81, 0, 0, 7]);
    }
}

#[test]
fn header_positions_of_a_single_packet() {
    for policy in both_modes() {
        for frame in [
            Frame::tcp4(1, 1001),
            Frame::tcp4(1, 1001).tagged(7),
            Frame::tcp6(1, 5).tagged(7).tagged(8),
        ] {
            let offsets = frame.offsets();
            let layout =
                run(policy, &packets(&[frame])).outputs[0].metadata.layout.expect("a layout");
            assert_eq!(
                [layout.network, layout.transport, layout.payload].map(usize::from),
                [offsets.network, offsets.transport, offsets.payload]
            );
            assert_eq!(layout.end as usize, offsets.end);
        }
    }
}

#[test]
fn labels_move_every_header_too() {
    let frame = Frame::tcp4(1, 1001)
        .with(|frame| frame.mpls = vec![Mpls::default(), Mpls { label: 7, ..Mpls::default() }]);
    assert_merges(&packets(&frame.run(3)), 1, 3003, "");
    assert_eq!(frame.offsets().network, 22);
}

#[test]
fn tags_in_the_frame_are_part_of_the_flow() {
    let tags: [&[Vlan]; 4] = [
        &[],
        &[Vlan { tpid: 0x8100, pcp: 0, dei: false, vid: 10 }],
        &[Vlan { tpid: 0x8100, pcp: 0, dei: false, vid: 11 }],
        &[SERVICE],
    ];
    let runs =
        tags.map(|tags| Frame::tcp4(1, 500).with(|frame| frame.vlans = tags.to_vec()).run(4));
    let input: Vec<_> =
        (0..4).flat_map(|index| runs.iter().map(move |run| Packet::from(&run[index]))).collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.payloads(), [2000; 4]);
        assert_eq!(
            run.outputs.iter().map(|output| output.bytes[12..16].to_vec()).collect::<Vec<_>>(),
            runs.each_ref().map(|run| run[0].to_bytes()[12..16].to_vec())
        );
        run.outputs.iter().for_each(|output| assert_merged(output, 1, 2000, 4));
    }
}

#[test]
fn stripped_tags_are_part_of_the_flow() {
    let tag = |protocol, control| Some(VlanTag { protocol, control });
    let tags = [None, tag(0x8100, 7), tag(0x8100, 8), tag(0x88a8, 7)];
    let frames = Frame::tcp4(1, 500).run(4);
    let input: Vec<_> =
        frames.iter().flat_map(|frame| tags.map(|tag| stripped(frame, tag))).collect();
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.outputs.iter().map(|output| output.metadata.vlan).collect::<Vec<_>>(), tags);
        run.outputs.iter().for_each(|output| assert_merged(output, 1, 2000, 4));
    }
}

#[test]
fn a_stripped_tag_is_not_the_same_tag_in_the_frame() {
    let frames = Frame::tcp4(1, 500).run(2);
    let tagged = Frame::tcp4(1, 500).tagged(7).run(2);
    let vlan = Some(VlanTag { protocol: 0x8100, control: 7 });
    let input = [
        stripped(&frames[0], vlan),
        stripped(&tagged[0], None),
        stripped(&frames[1], vlan),
        stripped(&tagged[1], None),
    ];
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(
            run.outputs.iter().map(|output| output.metadata.vlan).collect::<Vec<_>>(),
            [vlan, None]
        );
        run.outputs.iter().for_each(|output| assert_merged(output, 1, 1000, 2));
    }
}

#[test]
fn another_priority_ends_a_merge_but_is_the_same_flow() {
    let tag = |priority: u16| Some(VlanTag { protocol: 0x8100, control: priority << 13 | 7 });
    let frames = Frame::tcp4(1, 500).run(4);
    let input: Vec<_> = frames
        .iter()
        .zip([tag(0), tag(0), tag(5), tag(5)])
        .map(|(frame, tag)| stripped(frame, tag))
        .collect();
    let in_frame: Vec<_> = Frame::tcp4(1, 500)
        .tagged(7)
        .run(4)
        .into_iter()
        .zip([0, 0, 5, 5])
        .map(|(frame, pcp)| Packet::from(frame.with(|frame| frame.vlans[0].pcp = pcp)))
        .collect();
    for policy in both_modes() {
        for input in [&input, &in_frame] {
            let run = run(policy, input);
            assert_eq!(run.reasons(), [Reason::LinkHeader, Reason::PollEnd]);
            assert_merged(&run.outputs[0], 1, 1000, 2);
            assert_merged(&run.outputs[1], 1001, 1000, 2);
        }
    }
}
