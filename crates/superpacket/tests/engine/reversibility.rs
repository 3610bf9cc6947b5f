//! Reversibility where it is subtle, the link header's share: VLAN tags, MAC addresses, PPPoE,
//! MPLS. The other `reversibility_` files hold the other headers'.
//!
//! In each: what merges, cut again, is what came in; what could not be restored did not merge, and
//! left for the reason named.

use crate::expect::*;
use crate::support::*;
use superpacket::aggregate::Reason;
use superpacket::packet::VlanTag;
use superpacket_traffic::frame::{Frame, Mpls, Pppoe, Vlan};

fn tagged() -> Frame {
    Frame::tcp4(1000, 100).tagged(7)
}

fn stripped(frame: &Frame, tag: Vlan) -> Packet {
    Packet { vlan: Some(VlanTag { protocol: tag.tpid, control: tag.tci() }), ..frame.into() }
}

#[test]
fn priority_and_drop_bits_in_the_frame_must_be_equal() {
    for base in
        [tagged(), tagged().tagged(8), Frame::tcp6(1000, 100).tagged(7), Frame::udp4(100).tagged(7)]
    {
        differs(&base, Reason::LinkHeader, |frame| frame.vlans[0].pcp = 5);
        differs(&base, Reason::LinkHeader, |frame| frame.vlans[0].dei = true);
    }
    // Of the inner tag too.
    differs(&tagged().tagged(8), Reason::LinkHeader, |frame| frame.vlans[1].pcp = 1);
}

#[test]
fn priority_and_drop_bits_that_the_device_stripped_must_be_equal() {
    let base = Frame::tcp4(1000, 100);
    let tag = Vlan { vid: 7, ..Vlan::default() };
    let all: Vec<_> = base.run(4).iter().map(|frame| stripped(frame, tag)).collect();
    let run = in_order(&all);
    assert_eq!(counts(&run), [4]);
    assert_eq!(run.outputs[0].metadata.vlan, all[0].vlan);
    for other in [Vlan { pcp: 3, ..tag }, Vlan { dei: true, ..tag }] {
        let mut packets = all.clone();
        packets[2].vlan = stripped(&base, other).vlan;
        let run = in_order(&packets);
        left(&run, &[2, 1, 1], &[Reason::LinkHeader, Reason::LinkHeader, Reason::PollEnd]);
    }
}

#[test]
fn a_priority_tag_of_vlan_0_is_not_the_same_as_none() {
    merges(&Frame::tcp4(1000, 100).tagged(0).run(5));
    two_flows(&Frame::tcp4(1000, 100).tagged(0), &Frame::tcp4(1000, 100));
    let plain = packets(&Frame::tcp4(1000, 100).run(3));
    let zero: Vec<_> = Frame::tcp4(1000, 100)
        .run(3)
        .iter()
        .map(|frame| stripped(frame, Vlan { vid: 0, ..Vlan::default() }))
        .collect();
    two_flows_of(&plain, &zero);
}

#[test]
fn vlan_ids_and_tag_protocols_tell_flows_apart() {
    two_flows(&tagged(), &Frame::tcp4(1000, 100).tagged(8));
    two_flows(&tagged(), &tagged().with(|frame| frame.vlans[0].tpid = 0x88a8));
    two_flows(&tagged().tagged(8), &tagged().tagged(8).with(|frame| frame.vlans[1].tpid = 0x88a8));
    two_flows(&tagged().tagged(8), &tagged().tagged(9));
    merges(&tagged().tagged(8).with(|frame| frame.vlans[0].tpid = 0x88a8).run(5));
    let frames = Frame::tcp4(1000, 100).run(3);
    let with = |tag: Vlan| frames.iter().map(|frame| stripped(frame, tag)).collect::<Vec<_>>();
    let tag = Vlan { vid: 7, ..Vlan::default() };
    two_flows_of(&with(tag), &with(Vlan { vid: 8, ..tag }));
    two_flows_of(&with(tag), &with(Vlan { tpid: 0x88a8, ..tag }));
}

#[test]
fn a_stripped_tag_and_one_in_the_frame_do_not_mix() {
    let in_band = packets(&tagged().run(3));
    let stripped: Vec<_> = Frame::tcp4(1000, 100)
        .run(3)
        .iter()
        .map(|frame| stripped(frame, Vlan { vid: 7, ..Vlan::default() }))
        .collect();
    two_flows_of(&in_band, &stripped);
}

#[test]
fn other_mac_addresses_are_another_flow() {
    let base = Frame::tcp4(1000, 100);
    two_flows(
        &base,
        &base.clone().with(|frame| frame.link.as_mut().expect("Ethernet").source[5] ^= 1),
    );
    two_flows(
        &base,
        &base.clone().with(|frame| frame.link.as_mut().expect("Ethernet").destination[0] ^= 4),
    );
}

#[test]
fn a_pppoe_length_must_be_the_frames() {
    for base in [Frame::tcp4(1000, 100), Frame::tcp6(1000, 100), Frame::udp4(100)] {
        let base = base.in_pppoe();
        merges(&base.run(5));
        let right = (base.offsets().end - 14 - 6) as u16;
        refused(&base, Reason::Padded, |frame| frame.pppoe_mut().length = Some(right + 1));
        refused(&base, Reason::Malformed, |frame| frame.pppoe_mut().length = Some(right - 1));
        refused(&base, Reason::Malformed, |frame| frame.pppoe_mut().length = Some(0));
        refused(&base, Reason::Padded, |frame| frame.trailer = vec![0; 6]);
        two_flows(&base, &base.clone().with(|frame| frame.pppoe_mut().session = 2));
    }
}

#[test]
fn a_pppoe_session_frame_of_another_code_passes() {
    // Discovery and unknown versions carry no flow, so nothing waits for them and they wait for
    // nothing.
    let base = Frame::tcp4(1000, 100).in_pppoe();
    for edit in [(0x11, 0x09), (0x21, 0)] {
        let mut frames = base.run(4);
        frames[2].pppoe = Some(Pppoe { version_type: edit.0, code: edit.1, ..Pppoe::default() });
        let run = reversed(&packets(&frames));
        assert_eq!(run.reasons(), [Reason::Malformed, Reason::Sequence, Reason::PollEnd]);
    }
}

#[test]
fn mpls_ttl_and_traffic_class_of_each_label_must_be_equal() {
    for base in [Frame::tcp4(1000, 100), Frame::tcp6(1000, 100)] {
        let base = base.with(|frame| {
            frame.mpls = vec![Mpls::default(), Mpls { label: 200, ..Mpls::default() }]
        });
        for label in 0..2 {
            differs(&base, Reason::LinkHeader, |frame| frame.mpls[label].ttl = 63);
            differs(&base, Reason::LinkHeader, |frame| frame.mpls[label].exp = 1);
            two_flows(&base, &base.clone().with(|frame| frame.mpls[label].label = 300));
        }
        two_flows(&base, &base.clone().with(|frame| frame.mpls.truncate(1)));
    }
}
