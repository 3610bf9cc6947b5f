//! Tests of ports that refuse frames, are full, or have a rate limit.

use super::*;
use crate::settings::NamedSettings;

#[test]
fn a_refused_super_packet_is_resent_in_segments_and_in_order() {
    let refuse = |frame: &TxFrame| {
        frame.gso.is_some().then(|| StopReason::Offload(io::Error::from_raw_os_error(22)))
    };
    let mut bench = Bench::refusing(|_| (), refuse);
    let frames = workload::w1(2 * workload::TRAIN);
    assert!(bytes(&bench.forward(&frames)) == frames, "two super-packets, one after the other");
    assert_eq!(bench.egress.shared.counts.fallbacks.value(), 2);
    let frames = workload::w1(30);
    for _ in 2..REFUSAL_LIMIT {
        assert!(bytes(&bench.forward(&frames)) == frames);
    }
    let before = bench.egress.shared.counts.fallbacks.value();
    assert!(bytes(&bench.forward(&frames)) == frames);
    let counts = &bench.egress.shared.counts;
    assert_eq!(
        (counts.fallbacks.value(), counts.segmented_for_refusal.value()),
        (before, 1),
        "the port is not asked again"
    );
}

#[test]
fn a_refusal_is_remembered_for_the_kind_of_packet() {
    let refuse = |frame: &TxFrame| {
        frame
            .gso
            .is_some_and(|gso| gso.kind == GsoKind::Tcp6)
            .then(|| StopReason::Offload(io::Error::from_raw_os_error(12)))
    };
    let mut bench = Bench::refusing(|_| (), refuse);
    let run = |frame: Frame| frame.run(5).iter().map(Frame::to_bytes).collect::<Vec<_>>();
    let (refused, taken) =
        (run(Frame::tcp6(1, 100)), [run(Frame::tcp4(1, 100)), run(Frame::tcp4(1, 100).tagged(7))]);
    for _ in 0..REFUSAL_LIMIT {
        assert!(bytes(&bench.forward(&refused)) == refused);
        assert_eq!(
            bench.forward(&taken[0]).len(),
            1,
            "one that is taken in between is of another kind"
        );
    }
    let segmentation = bench.egress.shared.features().segmentation.expect("TSO is on");
    assert_eq!(segmentation.refused, ["TCP over IPv6"]);
    assert!(bytes(&bench.forward(&refused)) == refused);
    assert_eq!(bench.egress.shared.counts.fallbacks.value(), u64::from(REFUSAL_LIMIT));
    for frames in &taken {
        assert_eq!(bench.forward(frames).len(), 1, "others are left to the port");
    }
    assert!(bench.egress.shared.runtime().has(Feature::TcpSegmentationOffload));
}

#[test]
fn refusals_with_successes_in_between_switch_nothing_off() {
    let mut number = 0;
    let mut bench = Bench::refusing(
        |_| (),
        move |frame: &TxFrame| {
            number += u32::from(frame.gso.is_some());
            (frame.gso.is_some() && number % 2 == 1)
                .then(|| StopReason::Offload(io::Error::from_raw_os_error(22)))
        },
    );
    let frames = workload::w1(30);
    for _ in 0..4 * REFUSAL_LIMIT {
        bench.forward(&frames);
    }
    assert_eq!(bench.egress.shared.counts.fallbacks.value(), u64::from(2 * REFUSAL_LIMIT));
    assert!(bench.egress.shared.runtime().capabilities.gso.refused.is_empty());
}

#[test]
fn a_refused_checksum_is_filled_in() {
    let frame =
        Frame::tcp4(1, 500).with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes();
    let refuse = |frame: &TxFrame| {
        (!frame.is_plain()).then(|| StopReason::Offload(io::Error::from_raw_os_error(5)))
    };
    let mut bench = Bench::refusing(|_| (), refuse);
    let sent = bench.pass(
        RxPacket::new(Buffer::from(frame))
            .with_checksum(RxChecksum::Partial { start: 34, offset: 16 }),
    );
    check::frame(&sent[0].bytes, &Expect::default()).expect("a right frame");
    assert_eq!((sent.len(), bench.egress.shared.counts.fallbacks.value()), (1, 1));
    let frame =
        Frame::tcp4(1, 500).with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes();
    for _ in 0..2 * REFUSAL_LIMIT {
        bench.pass(
            RxPacket::new(Buffer::from(frame.clone()))
                .with_checksum(RxChecksum::Partial { start: 34, offset: 16 }),
        );
    }
    let counts = &bench.egress.shared.counts;
    assert_eq!(counts.fallbacks.value(), u64::from(REFUSAL_LIMIT), "the port is not asked again");
    assert_eq!(counts.checksummed.value(), u64::from(REFUSAL_LIMIT) + 1);
}

#[test]
fn a_full_port_is_tried_again_and_then_drops_with_a_count() {
    let mut calls = 0;
    let mut sometimes = Bench::refusing(
        |_| (),
        move |_| {
            calls += 1;
            (calls % 2 == 1).then_some(StopReason::Full)
        },
    );
    let frame = Frame::udp4(100).to_bytes();
    assert_eq!(sometimes.forward(&[frame.clone(), frame.clone()]).len(), 2);
    assert_eq!(sometimes.drops("full"), 0);
    let mut never = Bench::refusing(|_| (), |_| Some(StopReason::Full));
    assert!(never.forward(&[frame.clone(), frame.clone(), frame]).is_empty());
    assert_eq!(never.drops("full"), 3);
}

#[test]
fn a_refused_frame_does_not_delay_the_others() {
    let frame = |payload| Frame::udp4(payload).to_bytes();
    let rule = |frame: &TxFrame| match frame.length {
        142 => Some(StopReason::Refused(io::Error::from_raw_os_error(1))),
        242 => Some(StopReason::TooLong),
        _ => None,
    };
    let mut bench = Bench::refusing(|_| (), rule);
    assert_eq!(bench.forward(&[frame(100), frame(50), frame(200), frame(60)]).len(), 2);
    assert_eq!((bench.drops("refused"), bench.drops("too_big")), (1, 1));
}

#[test]
fn a_port_that_is_down_or_gone_drops_the_rest_with_a_count() {
    let frame = Frame::udp4(100).to_bytes();
    let mut down = Bench::refusing(|_| (), |_| Some(StopReason::Down));
    assert!(down.forward(&[frame.clone(), frame.clone()]).is_empty());
    assert_eq!(down.drops("down"), 2);
    let gone = superpacket_port::PortError::Gone { port: "test".into() };
    let mut gone = Some(gone);
    let mut bench = Bench::refusing(|_| (), move |_| gone.take().map(StopReason::Gone));
    pass(RxPacket::new(Buffer::from(frame)), &mut |packet| bench.add(packet));
    assert_eq!(
        bench.egress.flush(&mut bench.outgoing, &mut bench.segmenter, &mut Copies::default()),
        Err(Broken)
    );
    assert_eq!(bench.drops("gone"), 1);
}

#[test]
fn a_full_port_is_retried_a_few_times_per_batch() {
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let mut full = Bench::refusing(
        |runtime| runtime.active = FeatureSet::NONE,
        move |_| {
            *count.lock().expect("no panic") += 1;
            Some(StopReason::Full)
        },
    );
    let frames: Vec<_> = (0..256)
        .flat_map(|flow| Frame::tcp4(flow, 100).run(1))
        .map(|frame| frame.to_bytes())
        .collect();
    assert!(full.forward(&frames).is_empty());
    assert_eq!(full.drops("full"), 256);
    let asked = *asked.lock().expect("no panic");
    assert!(asked <= 16, "a port is asked {asked} times to take 256 frames");
}

#[test]
fn a_port_with_room_again_gets_the_remaining_frames() {
    let mut calls = 0;
    let mut bench = Bench::refusing(
        |runtime| runtime.active = FeatureSet::NONE,
        move |_| {
            calls += 1;
            (calls <= FULL_RETRIES + 1).then_some(StopReason::Full)
        },
    );
    let frames: Vec<_> = (0..64)
        .flat_map(|flow| Frame::tcp4(flow, 100).run(1))
        .map(|frame| frame.to_bytes())
        .collect();
    assert!(bytes(&bench.forward(&frames)) == frames[32..], "the second half");
    assert_eq!(bench.drops("full"), 32);
}

#[test]
fn sent_packets_and_wire_bytes_are_limited() {
    // 40 frames of 1,448 payload bytes and 66 header bytes.
    let frames = workload::w1(40);
    let wire = frames.iter().map(Vec::len).sum::<usize>() as u64;
    for (name, burst, passing) in [
        ("tx_packet", 79, 1),
        ("tx_packet", 80, 2),
        ("tx_byte", 2 * wire - 1, 1),
        ("tx_byte", 2 * wire, 2),
        ("tx_byte", 1, 1),
    ] {
        for tso in [true, false] {
            let mut bench = Bench::new(|_| ());
            bench.egress.shared.change(|settings| {
                settings.set(&format!("{name}_rate"), 1_000).expect("a limit");
                settings.set(&format!("{name}_burst"), burst).expect("a limit");
            });
            bench.egress.refresh();
            bench.egress.runtime.active =
                bench.egress.runtime.active.set(Feature::TcpSegmentationOffload, tso);
            let passed = (0..5).filter(|_| !bench.forward(&frames).is_empty()).count();
            assert_eq!(
                (passed, bench.drops("tx_rate")),
                (passing, 5 - passing as u64),
                "{name} {burst} {tso}"
            );
        }
    }
}
