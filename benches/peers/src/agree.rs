//! Compares the results of a peer and the engine for the same frames, before they are timed.

use anyhow::{Context, Result, ensure};

/// Bytes of IP and TCP headers with timestamps before the payload, and offsets of their checksum
/// fields.
const IP: usize = 20;
const FIELDS: [std::ops::Range<usize>; 2] = [10..12, IP + 16..IP + 18];

const PSH: u8 = 0x08;

/// IP packets, each behind this number of bytes of an Ethernet header or a `virtio_net_hdr`.
#[derive(Clone, Copy)]
pub struct Packets<'a> {
    pub frames: &'a [Vec<u8>],
    pub header: usize,
}

impl<'a> Packets<'a> {
    fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.frames.iter().map(move |frame| &frame[self.header..])
    }
}

/// The compared parts of a packet that has left: its flow, its position in the flow, and its
/// payload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LeftPacket {
    source: [u8; 4],
    port: [u8; 2],
    sequence: u32,
    payload: Vec<u8>,
    push: bool,
}

/// Parses an IP packet; bytes behind its end are padding.
fn left(packet: &[u8]) -> Result<LeftPacket> {
    let read = || {
        let length = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        let tcp = packet.get(IP..length)?;
        let payload = tcp.get(usize::from(*tcp.get(12)? >> 4) * 4..)?.to_vec();
        Some(LeftPacket {
            source: *packet[12..].first_chunk()?,
            port: *tcp.first_chunk()?,
            sequence: u32::from_be_bytes(*tcp[4..].first_chunk()?),
            payload,
            push: tcp[13] & PSH != 0,
        })
    };
    read()
        .with_context(|| format!("a packet of {} bytes is no whole TCP/IPv4 packet", packet.len()))
}

fn all(packets: Packets<'_>) -> Result<Vec<LeftPacket>> {
    let mut all = packets.iter().map(left).collect::<Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

fn payload(packets: &[LeftPacket]) -> usize {
    packets.iter().map(|packet| packet.payload.len()).sum()
}

/// Checks that the whole payload of the frames has left, and that DPDK made the same packets, with
/// one exception: it merges no packet with PSH, so that the last segment of a super-packet with PSH
/// stays separate.
///
/// # Errors
/// The first difference.
pub fn by_reference(frames: Packets<'_>, ours: Packets<'_>, theirs: Packets<'_>) -> Result<()> {
    let (frames, ours, theirs) = (all(frames)?, all(ours)?, all(theirs)?);
    let size = frames.iter().map(|frame| frame.payload.len()).max().unwrap_or(0);
    let mut expected = Vec::new();
    for mut packet in ours {
        if packet.push && packet.payload.len() > size {
            let last = (packet.payload.len() - 1) / size * size;
            let tail = packet.payload.split_off(last);
            expected.push(LeftPacket {
                sequence: packet.sequence.wrapping_add(last as u32),
                payload: tail,
                ..packet
            });
            packet.push = false;
        }
        expected.push(packet);
    }
    expected.sort();
    ensure!(
        payload(&expected) == payload(&frames),
        "{} bytes of payload left of {}",
        payload(&expected),
        payload(&frames)
    );
    ensure!(
        expected == theirs,
        "rte_gro made other packets: {}, and {} were expected",
        theirs.len(),
        expected.len()
    );
    Ok(())
}

/// Checks that the whole payload of the frames has left, and that tun-rs made the same
/// super-packets. Its results do not contain single packets.
///
/// # Errors
/// The first difference.
pub fn in_place(frames: Packets<'_>, ours: Packets<'_>, theirs: Packets<'_>) -> Result<()> {
    let (frames, mut ours, theirs) = (all(frames)?, all(ours)?, all(theirs)?);
    ensure!(
        payload(&ours) == payload(&frames),
        "{} bytes of payload left of {}",
        payload(&ours),
        payload(&frames)
    );
    let size = frames.iter().map(|frame| frame.payload.len()).max().unwrap_or(0);
    ours.retain(|packet| packet.payload.len() > size);
    ensure!(
        ours == theirs,
        "tun-rs made other super-packets: {}, and the engine {}",
        theirs.len(),
        ours.len()
    );
    Ok(())
}

/// Checks that segments are the same, except for checksums that a port is to compute.
///
/// # Errors
/// The first difference.
pub fn segments(ours: Packets<'_>, theirs: Packets<'_>) -> Result<()> {
    let plain = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        for field in FIELDS {
            if let Some(bytes) = packet.get_mut(field) {
                bytes.fill(0);
            }
        }
        packet
    };
    let (ours, theirs): (Vec<_>, Vec<_>) =
        (ours.iter().map(plain).collect(), theirs.iter().map(plain).collect());
    ensure!(ours.len() == theirs.len(), "{} segments, theirs {}", ours.len(), theirs.len());
    let other = ours.iter().zip(&theirs).position(|(our, their)| our != their);
    ensure!(other.is_none(), "segment {} differs", other.unwrap_or(0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::workload::w1;

    use super::*;
    use crate::rows::ETHERNET;

    fn packets(count: usize) -> Vec<Vec<u8>> {
        w1(count).into_iter().map(|mut frame| frame.split_off(ETHERNET)).collect()
    }

    fn plain(packets: &[Vec<u8>]) -> Packets<'_> {
        Packets { frames: packets, header: 0 }
    }

    /// Returns one packet made of all, with the flags of the last.
    fn joined(packets: &[Vec<u8>]) -> Vec<u8> {
        let mut one = packets[0].clone();
        for packet in &packets[1..] {
            one.extend_from_slice(&packet[52..]);
            one[IP + 13] = packet[IP + 13];
        }
        let length = one.len() as u16;
        one[2..4].copy_from_slice(&length.to_be_bytes());
        one
    }

    #[test]
    fn a_packet_with_psh_may_be_apart_in_dpdk_alone() {
        let frames = packets(45);
        let (ours, theirs) = ([joined(&frames)], [joined(&frames[..44]), frames[44].clone()]);
        by_reference(plain(&frames), plain(&ours), plain(&theirs)).expect("the same");
        assert!(in_place(plain(&frames), plain(&ours), plain(&theirs[..1])).is_err());
        in_place(plain(&frames), plain(&ours), plain(&ours)).expect("the same");
    }

    #[test]
    fn other_payload_and_lost_packets_are_seen() {
        let frames = packets(44);
        let ours = [joined(&frames)];
        by_reference(plain(&frames), plain(&ours), plain(&ours)).expect("the same");
        let mut damaged = ours.clone();
        damaged[0][30_000] ^= 1;
        for compare in [by_reference, in_place] {
            assert!(compare(plain(&frames), plain(&ours), plain(&damaged)).is_err());
            assert!(compare(plain(&frames), plain(&ours), plain(&[])).is_err());
        }
        let fewer = [joined(&frames[..43])];
        let error = by_reference(plain(&frames), plain(&fewer), plain(&fewer))
            .expect_err("lost")
            .to_string();
        assert!(error.contains("bytes of payload left of"), "{error}");
    }

    #[test]
    fn segments_differ_in_checksums_at_most() {
        let ours = packets(3);
        let mut theirs = ours.clone();
        theirs[1][10] ^= 1;
        theirs[2][IP + 17] ^= 1;
        segments(plain(&ours), plain(&theirs)).expect("the same");
        theirs[1][8] ^= 1;
        let error = segments(plain(&ours), plain(&theirs)).expect_err("another").to_string();
        assert_eq!(error, "segment 1 differs");
        assert!(segments(plain(&ours), plain(&ours[..2])).is_err());
    }
}
