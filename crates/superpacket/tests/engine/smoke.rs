//! The first things that must hold.
use crate::support::*;
use superpacket::aggregate::Reason;
use superpacket_traffic::frame::Frame;

#[test]
fn a_run_of_segments_merges_and_comes_back() {
    let frames = Frame::tcp4(1000, 1448).with_timestamps(1, 2).run(20);
    let run = reversible(&frames);
    assert_eq!(run.payloads(), [20 * 1448]);
    assert_eq!(run.reasons(), [Reason::PollEnd]);
}

#[test]
fn every_protocol_and_tunnel_merges_and_comes_back() {
    let inner = [
        Frame::tcp4(1, 500),
        Frame::tcp6(1, 500),
        Frame::udp4(500),
        Frame::udp6(500),
        Frame::dccp4(1, 500),
        Frame::dccp6(1, 500),
    ];
    for frame in inner {
        for shape in frame.shapes(7) {
            let run = reversible(&shape.run(10));
            assert_eq!(run.outputs.len(), 1, "{shape:?}: {:?}", run.reasons());
            let run = run_polls(PARTIAL_GRO_UDP, &packets(&shape.run(10)), 5);
            assert_eq!(run.outputs.len(), 2, "{shape:?}: {:?}", run.reasons());
        }
    }
}
