//! Files with several link types and interfaces: which link headers are compared, and how they
//! separate flows.

use super::*;

/// Returns packets in memory, each with its link type.
fn mixed<'a>(packets: impl IntoIterator<Item = (LinkType, &'a Frame)>) -> Packets {
    let mut all = Packets::new();
    for (link_type, frame) in packets {
        all.push(link_type, Some(0), &frame.to_bytes()).expect("short");
    }
    all
}

fn ping() -> Frame {
    Frame::udp4(50).at_ip().with(|frame| frame.transport = Transport::Raw(1))
}

/// Returns the same packet from another MAC address.
fn twin(frame: &Frame) -> Frame {
    frame.clone().with(|frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9])
}

fn stricter() -> CheckOptions {
    CheckOptions { rules: Strictness::Reversible, ..CheckOptions::default() }
}

/// Files that mix Ethernet frames and IP packets are compared with their link headers. Without
/// these, packets of two flows would be confused.
#[test]
fn files_that_mix_link_types_and_begin_with_different_ones_are_compared_whole() {
    use LinkType as Link;
    let run = flow(1, 2, 100);
    let other = twin(&run[0]);
    let ping = ping();
    let original = mixed([
        (Link::ETHERNET, &run[0]),
        (Link::ETHERNET, &run[1]),
        (Link::ETHERNET, &other),
        (Link::RAW, &ping),
    ]);
    let left =
        mixed([(Link::RAW, &ping), (Link::ETHERNET, &other), (Link::ETHERNET, &merged(&run).0)]);
    let report = judge_by(Strictness::Reversible, Input::from(&left), Input::from(&original));
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(!report.not_judged.link_headers && report.merged == 1, "{report:#?}");
    // The link header of a merged packet is judged.
    let left = mixed([
        (Link::RAW, &ping),
        (Link::ETHERNET, &other),
        (Link::ETHERNET, &twin(&merged(&run).0)),
    ]);
    let report = judge_by(Strictness::Reversible, Input::from(&left), Input::from(&original));
    assert!(report.violations > 0);
}

/// A packet that is not IP does not determine the link header of a file.
#[test]
fn a_packet_that_is_not_ip_says_nothing_of_link_headers() {
    let cooked =
        |protocol: u16, data: &[u8]| [&[0; 14], &protocol.to_be_bytes()[..], data].concat();
    let [first, second] =
        [1, 2].map(|number| cooked(0x0800, &Frame::tcp4(number, 100).at_ip().to_bytes()));
    let arp = cooked(0x0806, &[7; 28]);
    let packets = |all: &[&[u8]]| {
        let mut packets = Packets::new();
        all.iter()
            .for_each(|data| packets.push(LinkType::LINUX_SLL, Some(0), data).expect("short"));
        packets
    };
    let (original, left) = (packets(&[&first, &arp, &second]), packets(&[&arp, &first, &second]));
    let report = judge_by(Strictness::Reversible, Input::from(&left), Input::from(&original));
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(!report.not_judged.link_headers);
}

/// If one file has no packet with the link header of the other, link headers are not compared.
#[test]
fn link_headers_are_left_out_where_only_one_file_mixes_them() {
    let (frame, ping) = (Frame::udp4(100), ping());
    let original = mixed([(LinkType::ETHERNET, &frame), (LinkType::RAW, &ping)]);
    let left = mixed([(LinkType::RAW, &frame.clone().at_ip()), (LinkType::RAW, &ping)]);
    let report = judge_by(Strictness::Reversible, Input::from(&left), Input::from(&original));
    assert_eq!(report.violations, 0, "{:#?}", report.described);
    assert!(report.not_judged.link_headers);
}

#[test]
fn files_that_mix_link_types_too_late_are_refused() {
    let frames: Vec<_> = (0..4096).map(|number| Frame::tcp4(number * 10, 10)).collect();
    let ping = ping();
    let ethernet = || frames.iter().map(|frame| (LinkType::ETHERNET, frame));
    let original = mixed(ethernet().chain([(LinkType::RAW, &ping)]));
    let left = mixed([(LinkType::RAW, &ping)].into_iter().chain(ethernet()));
    let refused = check(Input::from(&left), Input::from(&original), &stricter(), &mut ())
        .expect_err("too late")
        .to_string();
    for words in [
        "begins with packets that have an IP header, and packet 2 has an Ethernet header",
        "and packet 4097 has an IP header",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    // With one packet less, the mix is noticed in time.
    let original = mixed(ethernet().skip(1).chain([(LinkType::RAW, &ping)]));
    let left = mixed([(LinkType::RAW, &ping)].into_iter().chain(ethernet().skip(1)));
    let report = judge(Input::from(&left), Input::from(&original));
    assert_eq!(
        (report.violations, report.not_judged.link_headers),
        (0, false),
        "{:#?}",
        report.described
    );
}

/// Packets of different MAC addresses keep no order, even if link headers are not compared.
#[test]
fn link_headers_that_are_left_out_tell_flows_apart() {
    let run = flow(1, 3, 100);
    let original =
        mixed([&run[0], &run[1], &twin(&run[2])].map(|frame| (LinkType::ETHERNET, frame)));
    let left: Vec<_> = [&run[2], &run[0], &run[1]].map(|frame| frame.clone().at_ip()).into();
    let left = mixed(left.iter().map(|frame| (LinkType::RAW, frame)));
    let report = judge_by(Strictness::Reversible, Input::from(&left), Input::from(&original));
    assert!(report.not_judged.link_headers);
    assert_eq!(report.violations, 0, "{:#?}", report.described);
}

/// Of several datagrams with the same payload, the one of the right flow is found, even if another
/// came first.
#[test]
fn a_packet_of_another_flow_is_not_taken_for_one_that_comes_later() {
    let run = flow(4, 3, 100);
    let twin = run[2]
        .clone()
        .with(|frame| frame.link.as_mut().expect("Ethernet").source = [2, 0, 0, 0, 0, 9]);
    let original = vec![twin, run[0].clone(), run[1].clone(), run[2].clone()];
    let case = Case::with(original, &[&[1, 2, 3], &[0]]);
    assert_eq!(
        case.rules(Strictness::Reversible),
        BTreeSet::new(),
        "{:#?}",
        case.check(Strictness::Reversible).described
    );
}

/// A capture on both ports of a bridge has each packet twice. Packets of different interfaces
/// neither merge nor keep order.
#[test]
fn each_interface_has_separate_flows() {
    use superpacket_captures::file::{
        ByteOrder as Order, Compression, Container, FrameOptions, Interface, OutputFormat, Record,
        Sink, TimeResolution, Timestamp, Writer,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("both.pcapng");
    let format = OutputFormat {
        container: Container::PcapNg,
        byte_order: Order::Little,
        resolution: None,
        compression: Compression::None,
    };
    let mut writer = Writer::create(&path, format).expect("creates");
    let interface = Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS);
    writer.declare(&[interface.clone(), interface]).expect("declares");
    let fragment = Frame::tcp4(9000, 100).with_id(1).fragments(64, 99)[1].clone();
    for (number, frame) in flow(0, 8, 100).into_iter().chain([fragment]).enumerate() {
        // Only the first interface has the fragment, which overtakes held packets of the second.
        for interface in if number < 8 { 0..2 } else { 0..1 } {
            let record = Record {
                interface,
                time: Some(Timestamp::from_nanoseconds(number as u64)),
                original_length: None,
                options: FrameOptions::NONE,
            };
            writer.write(record, [&frame.to_bytes()[..]]).expect("writes");
        }
    }
    writer.finish().expect("finishes");
    let merged = coalesced(Input::Path(&path));
    for rules in [Strictness::Linux, Strictness::Reversible] {
        let report = judge_by(rules, Input::from(&merged), Input::Path(&path));
        assert_eq!(report.violations, 0, "{:#?}", report.described);
        assert!(report.merged > 4);
    }
}
