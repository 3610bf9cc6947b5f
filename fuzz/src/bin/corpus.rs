//! Writes the seeds of all fuzz targets: `cargo run --bin corpus` in this folder. The seeds are the
//! same each time.

use std::fs;
use std::path::Path;

use superpacket_captures::file::{
    ByteOrder, CaptureError, Compression, Container, FrameOptions, Interface, LinkType,
    OutputFormat, Record, Sink, TimeResolution, Timestamp, Writer,
};
use superpacket_front_end::{DriverRing, Memory};
use superpacket_fuzz::{SharedBytes, write};
use superpacket_traffic::frame::{Checksum, Frame};
use superpacket_traffic::generate::{self, Config, generate};

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let save = |target: &str, name: String, bytes: &[u8]| {
        let folder = root.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    let shapes: Vec<Frame> = [
        Frame::tcp4(1, 60).with_timestamps(1, 2),
        Frame::tcp6(1, 60),
        Frame::udp4(60),
        Frame::udp6(60),
        Frame::dccp4(1, 60),
    ]
    .into_iter()
    .flat_map(|frame| frame.shapes(5))
    .collect();
    for (index, frame) in shapes.iter().enumerate() {
        let at_ip = u8::from(frame.link.is_none());
        let bytes = frame.to_bytes();
        save("parse", format!("shape-{index:02}"), &bytes)?;
        let run: Vec<_> = frame.run(4).iter().map(|frame| (at_ip, 0, frame.to_bytes())).collect();
        save("check", format!("run-{index:02}"), &[&[6, 200, 1][..], &write(&run)].concat())?;
        save("aggregate", format!("run-{index:02}"), &[&[0xf4][..], &write(&run)].concat())?;
        // The field of a stripped tag says how much room is behind the packet.
        let roomy: Vec<_> =
            run.iter().map(|(flags, _, bytes)| (flags | 8, 10, bytes.clone())).collect();
        save(
            "in_place",
            format!("run-{index:02}"),
            &[&[0x43 | at_ip << 2][..], &write(&roomy)].concat(),
        )?;
        let kind = [0u8, 1, 2, 2, 4][index / 9];
        save(
            "segment",
            format!("cut-{index:02}"),
            &[&[kind, 0, 20, at_ip << 7, 0, 255][..], &bytes].concat(),
        )?;
    }
    // The memory of guests that offer buffers, then write to their ring once more.
    for (index, parts) in [
        &[(0x1800, 60)][..],
        &[(0x1800, 12), (0x1900, 100)],
        &[(0x0ff0, 32), (0x8000, 2000), (0x1400, 0)],
        &[(0x8000, 500), (0x8200, 500), (0x8400, 500), (0x8600, 500)],
    ]
    .iter()
    .enumerate()
    {
        for choice in 0..4_u8 {
            let memory = Memory::new(&[(0, 0x1000)]);
            let mut ring = DriverRing::new(0, 8);
            (ring.available, ring.used) = (0x100, 0x200);
            while ring.offer(&memory, parts, choice & 1 != 0).is_some() {}
            let input = [&[choice][..], &memory.read(0, 0x250), &[2, 1, 2, 12, 0]].concat();
            save("vhost", format!("ring-{index}-{choice}"), &input)?;
        }
    }
    let nested = [
        Frame::tcp4(1, 60).in_vxlan4().in_geneve().with_gro_hint(),
        Frame::tcp6(1, 60).in_geneve().in_vxlan6(),
        Frame::udp4(60).in_geneve().in_geneve(),
    ];
    for (index, (kind, frame)) in [0u8, 1, 2].into_iter().zip(&nested).enumerate() {
        let bytes = frame.to_bytes();
        save("parse", format!("nested-{index}"), &bytes)?;
        let run: Vec<_> = frame.run(4).iter().map(|frame| (0, 0, frame.to_bytes())).collect();
        save("check", format!("nested-{index}"), &[&[6, 200, 1][..], &write(&run)].concat())?;
        save("aggregate", format!("nested-{index}"), &[&[0xf4][..], &write(&run)].concat())?;
        save(
            "segment",
            format!("nested-{index}"),
            &[&[kind, 0, 20, 0, 0, 255][..], &bytes].concat(),
        )?;
    }
    for seed in 0..8 {
        let generated = generate(seed, &Config::default(), 12);
        let frames: Vec<_> = generated
            .iter()
            .map(|packet| {
                let state = if matches!(packet.checksum, generate::Checksum::Verified { .. }) {
                    2
                } else {
                    0
                };
                (
                    u8::from(packet.starts_at_ip) | state,
                    40,
                    packet.bytes[..packet.bytes.len().min(300)].to_vec(),
                )
            })
            .collect();
        save("check", format!("mix-{seed}"), &[&[7, 99, 0x20][..], &write(&frames)].concat())?;
        save(
            "aggregate",
            format!("mix-{seed}"),
            &[&[(seed as u8) << 4 | 4][..], &write(&frames)].concat(),
        )?;
    }
    for (index, (gso_type, frame)) in [
        (1u8, Frame::tcp4(1, 100)),
        (4, Frame::tcp6(1, 100)),
        (5, Frame::udp4(100)),
        (3, Frame::udp4(100)),
        (0, Frame::tcp4(1, 10)),
    ]
    .into_iter()
    .enumerate()
    {
        let frame = frame.with(|frame| {
            if let Some(checksum) = frame.checksum_mut() {
                *checksum = Checksum::Partial
            }
        });
        let (transport, offset) = (
            frame.offsets().transport as u8,
            if gso_type == 1 || gso_type == 4 || gso_type == 0 { 16 } else { 6 },
        );
        let header = [1, gso_type, 0, 0, 30, 0, transport, 0, offset, 0];
        save(
            "virtio",
            format!("header-{index}"),
            &[&[0][..], &header, &frame.to_bytes()].concat(),
        )?;
    }
    // Captures of one and two frames, in the four classic headers and in pcapng.
    let frame = Frame::tcp4(1, 30).to_bytes();
    for (index, magic) in [0xa1b2_c3d4u32, 0xa1b2_3c4d].into_iter().enumerate() {
        for big in [false, true] {
            let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
            let half = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
            let mut file = [
                word(magic).as_slice(),
                &half(2),
                &half(4),
                &word(0),
                &word(0),
                &word(65_535),
                &word(1),
            ]
            .concat();
            for second in 0..2 {
                file.extend(
                    [word(second), word(5), word(frame.len() as u32), word(frame.len() as u32)]
                        .concat(),
                );
                file.extend(&frame);
            }
            save("capture", format!("pcap-{index}-{big}"), &file)?;
        }
    }
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let mut body = [
        0u32.to_le_bytes(),
        0u32.to_le_bytes(),
        5u32.to_le_bytes(),
        (frame.len() as u32).to_le_bytes(),
        (frame.len() as u32).to_le_bytes(),
    ]
    .concat();
    body.extend(&frame);
    body.resize(body.len().next_multiple_of(4), 0);
    let section = block(
        0x0a0d_0d0a,
        &[&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &u64::MAX.to_le_bytes()].concat(),
    );
    let interface = block(1, &[1, 0, 0, 0, 0, 0, 4, 0]);
    save("capture", "pcapng".into(), &[section, interface, block(6, &body)].concat())?;
    // Other contents of a capture.
    let plain = OutputFormat {
        container: Container::PcapNg,
        byte_order: ByteOrder::Little,
        resolution: None,
        compression: Compression::None,
    };
    let ethernet = Interface::new(LinkType::ETHERNET, TimeResolution::MICROSECONDS).named("eth0");
    let mut tun = Interface::new(LinkType::RAW, TimeResolution::NANOSECONDS).named("tun0");
    tun.offset_seconds = 7;
    let (one, two) = ([ethernet.clone()], [ethernet, tun]);
    let captures = [
        (
            "pcap-gzip",
            OutputFormat { container: Container::Pcap, compression: Compression::Gzip, ..plain },
            &one[..],
        ),
        ("pcapng-big-endian", OutputFormat { byte_order: ByteOrder::Big, ..plain }, &one[..]),
        ("pcapng-two-interfaces", plain, &two[..]),
    ];
    for (name, format, interfaces) in captures {
        let file = captured(format, interfaces).map_err(std::io::Error::other)?;
        save("capture", name.into(), &file)?;
        save("check", name.into(), &[&[4][..], &file].concat())?;
    }
    for (name, flags, first, second) in judged() {
        save(
            "check",
            name.into(),
            &[&[flags][..], &(first.len() as u16).to_be_bytes(), &first, &second].concat(),
        )?;
    }
    Ok(())
}

/// Returns files of records for the checker: a merged packet and its original packets, in both
/// roles, once damaged, and fragments in another order.
fn judged() -> Vec<(&'static str, u8, Vec<u8>, Vec<u8>)> {
    let records = |packets: &[([u8; 10], Vec<u8>)]| {
        let mut file = b"superpacket-records 1 ethernet 10\n".to_vec();
        for (header, packet) in packets {
            file.extend((10 + packet.len() as u32).to_le_bytes());
            file.extend([&header[..], packet].concat());
        }
        file
    };
    let single = |frame: &Frame| ([0; 10], frame.to_bytes());
    let mut files = Vec::new();
    for (frame, kind, field, names) in [
        (Frame::tcp4(1, 40).with_id(7), 1, 16, ["merged-tcp", "cut-tcp", "damaged-tcp"]),
        (Frame::udp6(40), 5, 6, ["merged-udp", "cut-udp", "damaged-udp"]),
    ] {
        let run = frame.run(3);
        let mut whole = frame.with(|frame| {
            frame.payload = run.iter().flat_map(|frame| frame.payload.clone()).collect()
        });
        if let Some(checksum) = whole.checksum_mut() {
            *checksum = Checksum::Partial;
        }
        let offsets = whole.offsets();
        let header =
            [1, kind, offsets.payload as u8, 0, 40, 0, offsets.transport as u8, 0, field, 0];
        let merged = records(&[(header, whole.to_bytes())]);
        let singles = records(&run.iter().map(single).collect::<Vec<_>>());
        let mut damaged = merged.clone();
        if let Some(byte) = damaged.last_mut() {
            *byte ^= 1;
        }
        for (name, first, second) in [
            (names[0], &merged, &singles),
            (names[1], &singles, &merged),
            (names[2], &damaged, &singles),
        ] {
            files.push((name, 1, first.clone(), second.clone()));
        }
    }
    let mut run = Frame::tcp4(1, 40).run(2);
    run.extend(Frame::tcp4(900, 80).fragments(64, 9));
    let original = records(&run.iter().map(single).collect::<Vec<_>>());
    run.rotate_right(2);
    files.push(("fragments", 1, records(&run.iter().map(single).collect::<Vec<_>>()), original));
    files
}

/// Returns a capture of three frames, on the interfaces in turn.
fn captured(format: OutputFormat, interfaces: &[Interface]) -> Result<Vec<u8>, CaptureError> {
    let written = SharedBytes::default();
    let mut writer = Writer::into_stream("seed", Box::new(written.clone()), format)?;
    writer.declare(interfaces)?;
    for (number, frame) in Frame::tcp4(1, 30).run(3).into_iter().enumerate() {
        let interface = number % interfaces.len();
        let frame =
            if interfaces[interface].link_type == LinkType::RAW { frame.at_ip() } else { frame };
        let time =
            Some(Timestamp::from_nanoseconds(1_700_000_000_000_000_000 + number as u64 * 1_000));
        let record = Record {
            interface: interface as u32,
            time,
            original_length: None,
            options: FrameOptions::NONE,
        };
        writer.write(record, [&frame.to_bytes()[..]])?;
    }
    writer.finish()?;
    Ok(written.bytes())
}
