//! Beside tun-rs, which joins and cuts for TUN devices as wireguard-go does: the same packets, in
//! buffers of the same kind, in turn.
//!
//! What both do: verify the checksums, join the payloads in the first packet's buffer, patch the
//! headers, make the `virtio_net_hdr`. So buffers are restored before each call, outside of the
//! time.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use superpacket_traffic::frame::Checksum;
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN, w1, w2, w3, w4};
use tun_rs::{GROTable, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_LEN, VirtioNetHdr, gso_split};

use crate::clock::median;
use crate::engine::{TunCutter, TunJoiner};
use crate::table::Table;

/// Where a packet starts in its buffer: behind the room for a `virtio_net_hdr`.
const OFFSET: usize = VIRTIO_NET_HDR_LEN;

/// Bytes before an IP packet, and before the payload of one with timestamps.
const ETHERNET: usize = 14;
const HEADERS: usize = 52;

/// Samples of a round, of which the best counts.
const SAMPLES: usize = 20;

/// Calls of a sample, where a call is short and changes nothing that must be restored.
const CALLS: usize = 50;

/// Nanoseconds a packet, theirs and ours: medians over rounds.
///
/// # Errors
/// If the two do not give the same packets.
pub fn compare(only: &str, rounds: usize) -> Result<Table> {
    let ip = |frames: Vec<Vec<u8>>| frames.into_iter().map(|frame| frame[ETHERNET..].to_vec()).collect::<Vec<_>>();
    // Without the padding of a short Ethernet frame.
    let acknowledgement = w3(1).into_iter().map(|frame| frame[ETHERNET..ETHERNET + 40].to_vec()).collect();
    let joins = [
        ("join 64 x 1500 bytes, 1 flow", ip(w1(64)), 1),
        ("join 64 x 1500 bytes, 8 flows", ip(w2(8, 64)), 1),
        ("join 64 x 1500 bytes, 64 flows", ip(w2(64, 64)), 1),
        ("join 1 packet of 1500 bytes", ip(w1(1)), CALLS),
        ("join 1 pure ACK", acknowledgement, CALLS),
    ];
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for (name, packets, calls) in joins.iter().filter(|(name, ..)| name.contains(only)) {
        let [their, our] = join(packets, *calls, rounds)?;
        theirs.push(((*name).to_owned(), their));
        ours.push(((*name).to_owned(), our));
    }
    let name = "cut 65,160 bytes into 45";
    if name.contains(only) {
        let [their, our] = cut(rounds)?;
        theirs.push((name.to_owned(), their));
        ours.push((name.to_owned(), our));
    }
    let mut table = Table::default();
    table.push("tun-rs", theirs)?;
    table.push("superpacket", ours)?;
    Ok(table)
}

/// Buffers as tun-rs wants them: room for a header before each packet, and for 64 KB in all.
fn buffers(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut buffers: Vec<_> = packets.iter().map(|_| Vec::with_capacity(OFFSET + 65_536)).collect();
    restore(&mut buffers, packets);
    buffers
}

fn restore(buffers: &mut [Vec<u8>], packets: &[Vec<u8>]) {
    for (buffer, packet) in buffers.iter_mut().zip(packets) {
        buffer.clear();
        buffer.resize(OFFSET, 0);
        buffer.extend_from_slice(packet);
    }
}

/// Nanoseconds a packet of both, theirs first.
fn join(packets: &[Vec<u8>], calls: usize, rounds: usize) -> Result<[f64; 2]> {
    join_alike(packets)?;
    let (for_ours, for_theirs) = (RefCell::new(buffers(packets)), RefCell::new(buffers(packets)));
    let mut table = GROTable::new();
    let mut joiner = TunJoiner::new();
    alternate(
        rounds,
        calls * packets.len(),
        [&mut || restore(&mut for_theirs.borrow_mut(), packets), &mut || restore(&mut for_ours.borrow_mut(), packets)],
        || {
            for _ in 0..calls {
                table.apply_gro(black_box(&mut for_theirs.borrow_mut()), OFFSET, false).expect("valid buffers");
            }
        },
        || {
            for _ in 0..calls {
                black_box(joiner.join(black_box(&mut for_ours.borrow_mut()), OFFSET));
            }
        },
    )
}

/// Nanoseconds a segment of both, theirs first.
fn cut(rounds: usize) -> Result<[f64; 2]> {
    let mut packet = w4(1, Checksum::Partial).remove(0).split_off(ETHERNET);
    let header = VirtioNetHdr {
        flags: 1,
        gso_type: VIRTIO_NET_HDR_GSO_TCPV4,
        hdr_len: HEADERS as u16,
        gso_size: TCP_PAYLOAD as u16,
        csum_start: 20,
        csum_offset: 16,
    };
    let mut read = vec![0; OFFSET];
    header.encode(&mut read)?;
    read.extend_from_slice(&packet);
    let out = || vec![vec![0u8; OFFSET + 1_600]; TRAIN + 1];
    let (mut for_theirs, mut for_ours) = (out(), out());
    let (mut their_sizes, mut our_sizes) = (vec![0; TRAIN + 1], vec![0; TRAIN + 1]);
    let mut cutter = TunCutter::new();

    let count = gso_split(&mut packet, header, &mut for_theirs, &mut their_sizes, OFFSET, false)?;
    ensure!(count == TRAIN && cutter.cut(&read, &mut for_ours, &mut our_sizes, OFFSET) == TRAIN, "not {TRAIN} segments");
    ensure!(
        their_sizes == our_sizes && for_theirs.iter().zip(&for_ours).all(|(theirs, ours)| theirs[OFFSET..] == ours[OFFSET..]),
        "cut otherwise"
    );

    alternate(
        rounds,
        TRAIN,
        [&mut || {}, &mut || {}],
        || {
            let header = VirtioNetHdr::decode(black_box(&read)).expect("a whole header");
            gso_split(black_box(&mut packet), header, &mut for_theirs, &mut their_sizes, OFFSET, false).expect("a super-packet");
            black_box((&for_theirs, &their_sizes));
        },
        || {
            cutter.cut(black_box(&read), &mut for_ours, &mut our_sizes, OFFSET);
            black_box((&for_ours, &our_sizes));
        },
    )
}

/// Times two ways of doing the same with so many packets, in turn; `prepare` comes before each
/// sample of each, outside of the time.
fn alternate(
    rounds: usize,
    packets: usize,
    prepare: [&mut dyn FnMut(); 2],
    mut theirs: impl FnMut(),
    mut ours: impl FnMut(),
) -> Result<[f64; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    let sample = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e9 / packets as f64
    };
    for _ in 0..rounds {
        let mut best = [f64::INFINITY; 2];
        for _ in 0..SAMPLES {
            prepare[0]();
            best[0] = best[0].min(sample(&mut theirs));
        }
        for _ in 0..SAMPLES {
            prepare[1]();
            best[1] = best[1].min(sample(&mut ours));
        }
        for (times, best) in times.iter_mut().zip(best) {
            times.push(best);
        }
    }
    Ok(times.map(median))
}

/// Checks that what joins has the same payload and segment size on both sides.
fn join_alike(packets: &[Vec<u8>]) -> Result<()> {
    let mut joined = buffers(packets);
    GROTable::new().apply_gro(&mut joined, OFFSET, false)?;
    // What merged into another has been left as it was.
    let grown = joined.iter().zip(packets).filter(|(buffer, packet)| buffer.len() > OFFSET + packet.len());
    let mut theirs = Vec::new();
    for (buffer, _) in grown {
        theirs.push((VirtioNetHdr::decode(buffer)?.gso_size, buffer[OFFSET + HEADERS..].to_vec()));
    }
    let mut ours = Vec::new();
    let mut joined = buffers(packets);
    for &index in TunJoiner::new().join(&mut joined, OFFSET) {
        if joined[index].len() > OFFSET + packets[index].len() {
            ours.push((VirtioNetHdr::decode(&joined[index])?.gso_size, joined[index][OFFSET + HEADERS..].to_vec()));
        }
    }
    theirs.sort();
    ours.sort();
    ensure!(ours == theirs, "joined otherwise: {} super-packets, theirs {}", ours.len(), theirs.len());
    Ok(())
}
