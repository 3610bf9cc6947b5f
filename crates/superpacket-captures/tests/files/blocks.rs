//! Blocks of pcapng files that hold neither packets nor interfaces.

use std::collections::BTreeMap;

use crate::bytes::*;
use superpacket_captures::file::{
    BlockCounts, BlockKind, ByteOrder, Container, Item, OutputFormat, Sink, Source, Writer,
};

const SECRETS: u32 = 10;

/// Copies frames and other blocks, and returns the file and the counts of blocks.
fn copy(file: &[u8], format: impl Fn(OutputFormat) -> OutputFormat) -> (Vec<u8>, BlockCounts) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let mut reader = open(file).unwrap();
    let mut writer = Writer::create(&path, format(OutputFormat::like(reader.format()))).unwrap();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Frame(frame) => writer.copy(&frame).unwrap(),
            Item::Block(block) => writer.block(&block).unwrap(),
        }
    }
    writer.declare(reader.interfaces()).unwrap();
    let counts = writer.blocks();
    writer.finish().unwrap();
    (std::fs::read(&path).unwrap(), counts)
}

/// A header with comments and a name, then all kinds of blocks between frames.
fn one_section(order: ByteOrder) -> Vec<u8> {
    let custom = |b: Bytes, code| b.option(code, &[0; 4]);
    bytes(order)
        .block(0x0A0D_0D0A, |b| {
            let b = b.u32(0x1A2B_3C4D).u16(1).u16(0).u64(u64::MAX);
            b.option(1, b"why").option(1, b"how").option(2, b"x86").option(4, b"dumpcap").u32(0)
        })
        .block(SECRETS, |b| b.u32(0x544c_534b).u32(5).padded(b"CLIEN").option(1, b"keys").u32(0))
        .interface(1, 0, none)
        .enhanced(0, 1, 3, b"one", none)
        .block(4, |b| {
            let b = b.option(1, b"\x0a\0\0\x01host\0").option(2, &[7; 20]).u32(0);
            b.option(2, b"dns").u32(0)
        })
        .block(9, |b| b.padded(b"MESSAGE=up\n"))
        .enhanced(0, 2, 3, b"two", none)
        .block(5, |b| {
            let b = b.u32(0).u32(1).u32(2);
            let times = [bytes(order).u32(1).u32(2).0, bytes(order).u64(300).0];
            custom(b.option(3, &times[0]).option(4, &times[1]), 2).u32(0)
        })
        .0
}

#[test]
fn blocks_come_out_as_they_went_in() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let mut file = one_section(order);
        let end =
            bytes(order).block(0xBAD, |b| b.u32(9).raw(b"data")).block(77, |b| b.raw(&[1; 4]));
        file.extend(end.0);
        let (written, counts) = copy(&file, |like| like);
        assert_eq!(counts, BlockCounts { kept: 6, ..BlockCounts::default() });
        assert_eq!(snapless(written), snapless(file), "{order:?}");
    }
}

/// Numbers of known blocks are turned around for the other byte order.
#[test]
fn blocks_are_converted_to_the_byte_order_of_the_output() {
    for (order, other) in [(ByteOrder::Little, ByteOrder::Big), (ByteOrder::Big, ByteOrder::Little)]
    {
        let mut file = one_section(order);
        file.extend(bytes(order).block(0xBAD, |b| b.u32(9)).block(77, |b| b.raw(&[1; 4])).0);
        let (written, counts) = copy(&file, |like| OutputFormat { byte_order: other, ..like });
        assert_eq!(snapless(written), snapless(one_section(other)), "{other:?}");
        let left_out = BTreeMap::from([(BlockKind::Custom, 1), (BlockKind::Unknown, 1)]);
        assert_eq!(counts, BlockCounts { kept: 4, left_out, options_left_out: 0 });
    }
}

/// Sets the snap length of the first interface to 0.
fn snapless(mut file: Vec<u8>) -> Vec<u8> {
    let interface = file.windows(8).position(|window| {
        window == [1, 0, 0, 0, 20, 0, 0, 0] || window == [0, 0, 0, 1, 0, 0, 0, 20]
    });
    let at = interface.expect("an interface") + 12;
    file[at..at + 4].fill(0);
    file
}

#[test]
fn what_must_not_be_copied_is_counted() {
    let order = ByteOrder::Little;
    let file = bytes(order)
        .section()
        .interface(1, 0, none)
        .block(0x4000_0BAD, |b| b.u32(9).raw(b"mine"))
        .block(4, |b| {
            b.u32(0).option(19372, b"\x09\0\0\0text").option(2988, b"\x09\0\0\0text").u32(0)
        })
        // Packet counts of an interface that is not there.
        .block(5, |b| b.u32(1).u32(0).u32(0))
        .enhanced(0, 1, 3, b"one", none);
    let (written, counts) = copy(&file.0, |like| like);
    let left_out =
        BTreeMap::from([(BlockKind::CustomKeptOut, 1), (BlockKind::InterfaceStatistics, 1)]);
    assert_eq!(counts, BlockCounts { kept: 1, left_out, options_left_out: 1 });
    let count = |part: &[u8]| written.windows(part.len()).filter(|window| *window == part).count();
    assert_eq!((count(b"mine"), count(b"text")), (0, 1));
    // For another byte order, the organization's number is turned around.
    let (written, _) = copy(&file.0, |like| OutputFormat { byte_order: ByteOrder::Big, ..like });
    assert!(written.windows(8).any(|window| window == b"\0\0\0\x09text"));
}

#[test]
fn interfaces_of_packet_counts_are_those_of_the_output() {
    let section = |order: ByteOrder, comment: &[u8]| {
        bytes(order)
            .block(0x0A0D_0D0A, |b| {
                let b = b.u32(0x1A2B_3C4D).u16(1).u16(0).u64(u64::MAX);
                b.option(1, comment).u32(0)
            })
            .interface(1, 0, none)
            .interface(1, 0, none)
            .enhanced(1, 5, 3, b"abc", none)
            .block(5, |b| b.u32(1).u32(0).u32(7))
            .0
    };
    let file = [section(ByteOrder::Little, b"first"), section(ByteOrder::Big, b"second")].concat();
    let (written, counts) = copy(&file, |like| like);
    assert_eq!(counts, BlockCounts { kept: 2, ..BlockCounts::default() });
    let mut reader = open(written.clone()).unwrap();
    let mut named = Vec::new();
    let mut sections = 0;
    while let Some(item) = reader.next_item().unwrap() {
        if let Item::Block(block) = item {
            match block.kind() {
                BlockKind::InterfaceStatistics => named.push(block.bytes[8]),
                _ => sections += 1,
            }
        }
    }
    assert_eq!((named, sections), (vec![1, 3], 1));
    for comment in [&b"first"[..], b"second"] {
        assert!(written.windows(comment.len()).any(|window| window == comment));
    }
    // The comment on the second section is in its first interface, behind the first packet.
    let place = |part: &[u8]| written.windows(part.len()).position(|window| window == part);
    assert!(place(b"abc") < place(b"second"));
}

#[test]
fn a_section_comment_without_an_interface_is_counted_as_lost() {
    let section = |comment: &[u8]| {
        bytes(ByteOrder::Little).block(0x0A0D_0D0A, |b| {
            b.u32(0x1A2B_3C4D).u16(1).u16(0).u64(u64::MAX).option(1, comment).u32(0)
        })
    };
    let file = [section(b"first").interface(1, 0, none).0, section(b"second").0].concat();
    let (_, counts) = copy(&file, |like| like);
    assert_eq!(counts.left_out, BTreeMap::from([(BlockKind::SectionHeader, 1)]));
}

#[test]
fn a_pcap_file_holds_no_blocks() {
    let file = one_section(ByteOrder::Little);
    let (_, counts) = copy(&file, |like| OutputFormat { container: Container::Pcap, ..like });
    assert_eq!(counts.kept, 0);
    assert_eq!(counts.left_out.values().sum::<u64>(), 5, "four and the section's options");
}

#[test]
fn damaged_blocks_are_left_out() {
    let file = bytes(ByteOrder::Little)
        .section()
        .interface(1, 0, none)
        .block(SECRETS, |b| b.u32(1).u32(u32::MAX))
        .block(SECRETS, |b| b.u32(1))
        .block(5, |b| b.u32(0))
        .block(4, |b| b.u16(1).u16(900).u32(0))
        .0;
    let (_, counts) = copy(&file, |like| like);
    assert_eq!((counts.kept, counts.left_out.values().sum::<u64>()), (0, 4));
}
