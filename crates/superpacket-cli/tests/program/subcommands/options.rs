//! The information about a packet besides its bytes and time is kept: pcapng options, and the extra
//! fields of a modified pcap's records.

use crate::support::*;
use superpacket_captures::file::{Reader, Source};
use superpacket_traffic::frame::Frame;

/// Returns a little-endian pcapng block.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let total = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &total, body, &total].concat()
}

pub fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the comment of the frame with this number.
fn comment(number: usize) -> Vec<u8> {
    option(1, format!("packet {number}").as_bytes())
}

/// Returns a little-endian pcapng file of these frames, each with options; a frame's time is its
/// number.
pub fn pcapng(frames: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Vec<u8> {
    let mut section = 0x1a2b_3c4du32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &[1, 0, 0, 0, 0, 0, 0, 0])].concat();
    for (index, (data, options)) in frames.into_iter().enumerate() {
        let fields = [0, 0, index as u32, data.len() as u32, data.len() as u32];
        let mut body = [&fields.map(u32::to_le_bytes).concat()[..], &data].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &[&body[..], &options, &[0; 4]].concat()));
    }
    file
}

/// Returns a pcapng file of these frames, each with a comment, a hash and a queue.
fn commented(frames: &[Frame]) -> Vec<u8> {
    pcapng(frames.iter().enumerate().map(|(index, frame)| {
        let hash = option(3, &[2, 1, 2, 3, index as u8]);
        let queue = option(6, &[index as u8, 0, 0, 0]);
        (frame.to_bytes(), [comment(index), hash, queue].concat())
    }))
}

/// Returns the length and options of each frame in a capture.
fn options(bench: &Bench, name: &str) -> Vec<(usize, Vec<u8>)> {
    let mut reader = Reader::open(bench.path(name)).expect("opens");
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame().expect("reads") {
        found.push((frame.data.len(), frame.options.bytes().to_vec()));
    }
    found
}

fn kept(number: usize) -> Vec<u8> {
    [
        comment(number),
        option(3, &[2, 1, 2, 3, number as u8]),
        option(6, &[number as u8, 0, 0, 0]),
        vec![0; 4],
    ]
    .concat()
}

fn kept_by_merged(number: usize) -> Vec<u8> {
    [comment(number), option(6, &[number as u8, 0, 0, 0]), vec![0; 4]].concat()
}

#[test]
fn options_stay_with_held_packets_and_merged_packets_keep_the_last_ones() {
    let bench = Bench::new();
    // One packet that is held and leaves alone, three that merge, one that passes at once.
    let flow = tcp_flow(3, 500);
    let alone = from_host(Frame::tcp4(7, 400), 9);
    let ack = from_host(Frame::tcp4(7, 0), 8);
    let frames = [flow[0].clone(), alone, flow[1].clone(), ack, flow[2].clone()];
    bench.write("in.pcapng", commented(&frames));
    let report = bench.json("coalesce in.pcapng -o out.pcapng");
    assert_eq!((report["packets_out"].as_u64(), report["merged"].as_u64()), (Some(3), Some(2)));
    let mut found = options(&bench, "out.pcapng");
    found.sort();
    assert_eq!(found, [(54, kept(3)), (454, kept(1)), (54 + 1500, kept_by_merged(4))]);
    // Checksums that are completed on the way do not change that.
    let partial = from_host(Frame::tcp4(7, 400), 9)
        .with(|frame| frame.tcp_mut().checksum = superpacket_traffic::frame::Checksum::Partial);
    bench.write("in.pcapng", commented(&[partial]));
    bench.json("coalesce in.pcapng -o out.pcapng");
    assert_eq!(options(&bench, "out.pcapng"), [(454, kept(0))]);
    // The same with LRO and its merged acknowledgements, of which only the headers are left.
    bench.write("in.pcapng", commented(&frames));
    bench.json("coalesce in.pcapng -o out.pcapng --mode lro");
    let mut found = options(&bench, "out.pcapng");
    found.sort();
    assert_eq!(found, [(54, kept(3)), (454, kept(1)), (54 + 1500, kept_by_merged(4))]);
    // The pcap format has no place for the options.
    bench.json("coalesce in.pcapng -o out.pcap");
    assert!(options(&bench, "out.pcap").iter().all(|(_, options)| options.is_empty()));
}

#[test]
fn options_of_any_length_are_survived() {
    let bench = Bench::new();
    let frames = tcp_flow(4, 500);
    // Nearly as much as a record may contain.
    let options = option(1, &[b'x'; 65_535]).repeat(240);
    let file = pcapng(frames.iter().map(|frame| (frame.to_bytes(), options.clone())));
    bench.write("in.pcapng", file);
    let report = bench.json("coalesce in.pcapng -o out.pcapng");
    assert_eq!(report["packets_in"], 4);
    for command in [&["verify", "in.pcapng"][..], &["analyze", "in.pcapng"]] {
        assert_eq!(bench.json(command)["packets_in"], 4);
    }
}

/// Returns a pcap file in the format of Kuznetzov's modified libpcap.
fn modified(frames: &[Frame]) -> Vec<u8> {
    let mut file = Vec::new();
    for field in [0xa1b2_cd34u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(field.to_le_bytes());
    }
    for (index, frame) in frames.iter().enumerate() {
        let data = frame.to_bytes();
        for field in [1, index as u32, data.len() as u32, data.len() as u32] {
            file.extend(field.to_le_bytes());
        }
        file.extend(added(index));
        file.extend(data);
    }
    file
}

/// Returns the extra fields in the record of the frame with this number: interface, protocol,
/// packet type.
fn added(number: usize) -> [u8; 8] {
    [number as u8 + 1, 0, 0, 0, 0x00, 0x08, 4, 0]
}

#[test]
fn a_modified_pcap_stays_one_with_what_its_records_say() {
    let bench = Bench::new();
    let flow = tcp_flow(3, 500);
    let frames =
        [flow[0].clone(), from_host(Frame::tcp4(7, 400), 9), flow[1].clone(), flow[2].clone()];
    bench.write("in.pcap", modified(&frames));
    bench.json("coalesce in.pcap -o out.pcap");
    assert_eq!(bench.bytes("out.pcap")[..4], 0xa1b2_cd34u32.to_le_bytes());
    let mut found = options(&bench, "out.pcap");
    found.sort();
    assert_eq!(found, [(454, added(1).to_vec()), (1554, added(3).to_vec())]);
    // Each segment keeps the interface of its super-packet.
    bench.json("segment out.pcap -o again.pcap --mtu 540");
    let mut found = options(&bench, "again.pcap");
    found.sort();
    assert_eq!(
        found,
        [
            (454, added(1).to_vec()),
            (554, added(3).to_vec()),
            (554, added(3).to_vec()),
            (554, added(3).to_vec())
        ]
    );
    // Untouched packets are written byte for byte.
    bench.json("segment in.pcap -o same.pcap");
    assert!(bench.bytes("same.pcap") == modified(&frames));
}

/// Returns a pcapng file of TCP segments that follow one another by 100 microseconds, the first at
/// 5 seconds after `offset` (`if_tsoffset`), in either byte order.
fn with_offset(big_endian: bool, offset: i64, count: usize) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let half = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let long = if big_endian { offset.to_be_bytes() } else { offset.to_le_bytes() };
    let block = |kind: u32, body: &[u8]| {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let total = word(body.len() as u32 + 12);
        [&word(kind)[..], &total, &body, &total].concat()
    };
    let version = [half(1), half(0)].concat();
    let section = [&word(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat();
    let link = [&half(1)[..], &[0; 6], &half(14), &half(8), &long, &[0; 4]].concat();
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &link)].concat();
    for (index, frame) in Frame::tcp4(1, 1000).run(count).iter().enumerate() {
        let data = frame.to_bytes();
        let ticks = 5_000_000 + index as u32 * 100;
        let fields = [0, 0, ticks, data.len() as u32, data.len() as u32];
        file.extend(block(6, &[&fields.map(word).concat()[..], &data].concat()));
    }
    file
}

/// Returns the microseconds of each frame in a capture since `start`, in seconds.
fn microseconds_since(bench: &Bench, name: &str, start: i64) -> Vec<u64> {
    let mut reader = Reader::open(bench.path(name)).expect("opens");
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame().expect("reads") {
        found.push(frame.time.expect("has a time").nanoseconds_since(start) / 1000);
    }
    found
}

#[test]
fn times_before_1970_are_right() {
    let bench = Bench::new();
    for big_endian in [false, true] {
        for offset in [-10, -(1 << 40)] {
            bench.write("in.pcapng", with_offset(big_endian, offset, 30));
            let times: Vec<u64> = (0..30).map(|index| 5_000_000 + index * 100).collect();
            bench.prints("segment in.pcapng -o same.pcapng");
            assert_eq!(microseconds_since(&bench, "same.pcapng", offset), times);

            let report = bench.json("coalesce in.pcapng -o out.pcapng --hold 1ms");
            let merged = microseconds_since(&bench, "out.pcapng", offset);
            assert!(merged.iter().all(|time| times.contains(time)), "{merged:?}");
            assert_eq!(merged.len(), 3, "what is held leaves after 1 ms: {report}");
            let report = bench.json("analyze in.pcapng --hold 1ms");
            assert_eq!(report["packets_out"], 3, "{report}");

            // A pcap file has no times before 1970.
            for command in ["coalesce", "segment"] {
                bench.refuses(&[command, "in.pcapng", "-o", "out.pcap"], "its time cannot be");
            }
        }
    }
}

#[test]
fn a_negative_offset_counts_in_a_pcap_file_too() {
    let bench = Bench::new();
    for big_endian in [false, true] {
        bench.write("in.pcapng", with_offset(big_endian, -4, 3));
        bench.prints("segment in.pcapng -o out.pcap");
        assert_eq!(microseconds_since(&bench, "out.pcap", 0), [1_000_000, 1_000_100, 1_000_200]);
        bench.prints("coalesce in.pcapng -o out.pcap");
        let merged = microseconds_since(&bench, "out.pcap", 0);
        assert!(matches!(merged[..], [1_000_000..=1_000_200]), "{merged:?}");
    }
}
