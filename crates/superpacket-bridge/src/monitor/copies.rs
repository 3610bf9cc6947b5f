//! Copies packets into the rings of the monitors; runs in each thread that moves packets.

use std::ops::Range;
use std::sync::Arc;

use rtrb::Producer;
use rustix::time::{ClockId, clock_gettime};
use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket::segment::Gso;
use superpacket::virtio::{ByteOrder, Format, Header, Offload};
use superpacket::wire::MAX_HEADER;
use superpacket_port::{Buffer, Outgoing, TxBatch};

use super::feed::{Feed, MonitoredPort, Monitors};
use super::record::{HEAD, RecordHead};
use crate::runtime::SharedPort;

/// Length in bytes of the two hardware addresses, which precede a VLAN tag in a frame.
const ADDRESSES: usize = 12;
/// Length in bytes of a VLAN tag.
const TAG: usize = 4;

/// Copies the packets that one thread moves, for all monitors of the bridge.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    ends: Vec<CopyEnd>,
}

/// Copies the packets that one thread moves, for one monitor.
#[derive(Debug)]
struct CopyEnd {
    feed: Arc<Feed>,
    ring: Producer<u8>,
    /// The monitored ports, indexed by port number.
    ports: Vec<Option<MonitoredPort>>,
}

impl Copies {
    /// Returns whether any monitor is running.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Adds new monitors and removes ended ones.
    pub(crate) fn refresh<'a>(
        &mut self,
        monitors: &Monitors,
        ports: impl Iterator<Item = &'a SharedPort> + Clone,
    ) {
        let feeds = monitors.feeds();
        self.ends.retain(|end| feeds.iter().any(|feed| Arc::ptr_eq(feed, &end.feed)));
        for feed in feeds {
            if !self.ends.iter().any(|end| Arc::ptr_eq(&feed, &end.feed)) {
                let mut end = CopyEnd { ring: feed.ring(), feed, ports: Vec::new() };
                ports.clone().for_each(|port| end.open(port));
                self.ends.push(end);
            }
        }
    }

    /// Adds a port, which monitors may have to copy from now on.
    pub(crate) fn open(&mut self, port: &SharedPort) {
        self.ends.iter_mut().for_each(|end| end.open(port));
    }

    /// Removes a port, because its number may soon be used by another port.
    pub(crate) fn close(&mut self, number: u16) {
        for end in &mut self.ends {
            if let Some(watched) = end.ports.get_mut(usize::from(number)) {
                *watched = None;
            }
        }
    }

    /// Forgets all monitors after a panic, which may have left part of a copy in a ring. The caller
    /// must call `refresh` afterwards, which adds the monitors with new rings.
    pub(crate) fn abandon(&mut self) {
        self.ends.clear();
    }

    /// Copies the packets that a port has received.
    #[cold]
    pub(crate) fn received(&mut self, port: &SharedPort, packets: &[RxPacket<Buffer>]) {
        // All packets of the batch share one time, which is read only if the port is monitored.
        let mut time = None;
        for end in self.ends.iter_mut().filter(|end| end.feed.settings.direction.has_received()) {
            let CopyEnd { feed, ring, ports } = end;
            let Some(watched) = watched(ports, port.number) else { continue };
            let time = *time.get_or_insert_with(now);
            for packet in packets {
                let tag = packet.vlan.filter(|_| packet.layer == Layer::Ethernet).map(tag_bytes);
                let parts = || packet.buffers().map(Buffer::bytes);
                let length = packet.length() + tag.map_or(0, |tag| tag.len());
                CopiedPacket {
                    parts,
                    tag,
                    length,
                    checksum: packet.checksum,
                    gso: packet.gso,
                    layer: packet.layer,
                    sent: false,
                }
                .copy_to(ring, watched, time, feed.settings.snaplen);
            }
            feed.bell.ring();
        }
    }

    /// Returns the current time in nanoseconds since 1970 if there is a monitor. It must be read
    /// before packets are sent, because a reply may be received before the port reports them as
    /// sent.
    #[inline]
    pub(crate) fn time(&self) -> Option<u64> {
        if self.is_on() { Some(now()) } else { None }
    }

    /// Copies frames of a batch that a port has sent. `time` must have been read before they were
    /// sent.
    #[cold]
    pub(crate) fn sent(
        &mut self,
        port: &SharedPort,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frames: Range<usize>,
        time: u64,
    ) {
        for end in self.ends.iter_mut().filter(|end| end.feed.settings.direction.has_sent()) {
            let CopyEnd { feed, ring, ports } = end;
            let Some(watched) = watched(ports, port.number) else { continue };
            for frame in &batch.frames()[frames.clone()] {
                let parts = || batch.slices(frame).iter().map(|slice| outgoing.slice(*slice));
                let (length, checksum, gso, layer) =
                    (frame.length as usize, frame.checksum, frame.gso, frame.layer);
                CopiedPacket { parts, tag: None, length, checksum, gso, layer, sent: true }
                    .copy_to(ring, watched, time, feed.settings.snaplen);
            }
            feed.bell.ring();
        }
    }
}

impl CopyEnd {
    fn open(&mut self, port: &SharedPort) {
        let number = usize::from(port.number);
        if self.ports.len() <= number {
            self.ports.resize_with(number + 1, || None);
        }
        self.ports[number] = self.feed.watch(port);
    }
}

fn watched(ports: &[Option<MonitoredPort>], number: u16) -> Option<&MonitoredPort> {
    ports.get(usize::from(number))?.as_ref()
}

/// Returns the current time in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Returns the bytes of a VLAN tag as they are in a frame.
fn tag_bytes(tag: VlanTag) -> [u8; TAG] {
    let ([a, b], [c, d]) = (tag.protocol.to_be_bytes(), tag.control.to_be_bytes());
    [a, b, c, d]
}

/// A packet that is to be copied for monitors.
struct CopiedPacket<Parts> {
    /// A function that returns an iterator over the packet's pieces.
    parts: Parts,
    /// The VLAN tag that the device removed from the packet; the copy contains the tag.
    tag: Option<[u8; TAG]>,
    /// Length of the packet in bytes, including the VLAN tag that the device removed.
    length: usize,
    checksum: RxChecksum,
    gso: Option<Gso>,
    layer: Layer,
    sent: bool,
}

impl<'a, Pieces: Iterator<Item = &'a [u8]>, Parts: Fn() -> Pieces> CopiedPacket<Parts> {
    /// Writes a copy of the packet to a ring, or counts it as dropped if the ring has no room.
    fn copy_to(self, ring: &mut Producer<u8>, watched: &MonitoredPort, time: u64, snaplen: u32) {
        let captured = self.length.min(snaplen as usize);
        if ring.cached_slots() < HEAD + captured && ring.slots() < HEAD + captured {
            return watched.dropped.add(1);
        }
        let VirtioHeader { length: virtio_length, header: virtio, outer_checksum } = self.virtio();
        let (captured, length, sent) = (captured as u32, self.length as u32, self.sent);
        let head = RecordHead {
            interface: watched.interface,
            time,
            captured,
            length,
            sent,
            virtio_length,
            virtio,
        };
        // The ring has room for the whole copy, and the reader waits until the copy is complete.
        let _ = ring.push_entire_slice(&head.to_bytes());
        self.take_changed(captured as usize, outer_checksum, |bytes| {
            _ = ring.push_entire_slice(bytes)
        });
    }

    /// Passes the first `wanted` bytes of the packet to `give`, like [`take`](Self::take), but with
    /// the bytes in `changed` written at their offsets.
    fn take_changed(
        &self,
        wanted: usize,
        changed: Option<[(usize, u8); 2]>,
        mut give: impl FnMut(&[u8]),
    ) {
        let mut end = 0;
        self.take(wanted, |bytes| {
            let (start, mut rest) = (end, bytes);
            end += bytes.len();
            for (place, byte) in
                changed.into_iter().flatten().filter(|(place, _)| (start..end).contains(place))
            {
                let (before, behind) = rest.split_at(place - (end - rest.len()));
                give(before);
                give(&[byte]);
                rest = &behind[1..];
            }
            give(rest);
        });
    }

    /// Passes the first `wanted` bytes of the packet, with the VLAN tag inserted, to `give` piece
    /// by piece.
    fn take(&self, wanted: usize, mut give: impl FnMut(&[u8])) {
        let mut left = wanted;
        let mut piece = |bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            if !bytes.is_empty() {
                give(bytes);
            }
        };
        let (mut tag, mut before) = (self.tag, ADDRESSES);
        for part in (self.parts)() {
            match tag.filter(|_| before <= part.len()) {
                Some(bytes) => {
                    let (addresses, rest) = part.split_at(before);
                    [addresses, &bytes, rest].into_iter().for_each(&mut piece);
                    tag = None;
                }
                None => {
                    piece(part);
                    before = before.saturating_sub(part.len());
                }
            }
        }
    }

    /// Returns the packet's `virtio_net_hdr`. It has length 0 if the packet needs none, or needs
    /// something that the header cannot express.
    fn virtio(&self) -> VirtioHeader {
        let mut header = [0; Format::LONGEST];
        if self.gso.is_none() && !matches!(self.checksum, RxChecksum::Partial { .. }) {
            return VirtioHeader { length: 0, header, outer_checksum: None };
        }
        let checksum = match (self.checksum, self.tag) {
            (RxChecksum::Partial { start, offset }, Some(_)) => {
                RxChecksum::Partial { start: start.saturating_add(TAG as u16), offset }
            }
            (checksum, _) => checksum,
        };
        let (mut head, mut filled) = ([0; MAX_HEADER], 0);
        self.take(MAX_HEADER, |bytes| {
            head[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        });
        let offload = Offload::new(checksum, self.gso);
        // The longer format of the header is used only if the shorter one cannot describe a tunnel.
        let mut described = [Format::Plain, Format::Tunnel].into_iter().filter_map(|format| {
            let described =
                Header::describe(&offload, format, &head[..filled], self.length, self.layer)
                    .ok()?;
            let length = described.write(&mut header, format, ByteOrder::Little).ok()?;
            Some((length, described.outer_checksum(&head[..filled], self.length, self.layer)))
        });
        let (length, outer_checksum) = described.next().unwrap_or((0, None));
        let outer_checksum = outer_checksum.map(|(place, value)| {
            let [high, low] = value.to_be_bytes();
            [(place, high), (place + 1, low)]
        });
        VirtioHeader { length: length as u8, header, outer_checksum }
    }
}

/// The `virtio_net_hdr` of a packet, and the change to the packet's bytes that it requires.
struct VirtioHeader {
    /// Length of the header in bytes; 0 if there is none.
    length: u8,
    header: [u8; Format::LONGEST],
    /// New values for the two bytes of the tunnel's outer checksum, each with its offset. `None` if
    /// they need not change.
    outer_checksum: Option<[(usize, u8); 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::segment::{GsoKind, SegmentSize};
    use superpacket_traffic::frame::{Checksum, Frame};

    fn packet<'a, const N: usize>(
        parts: [&'a [u8]; N],
        tag: Option<[u8; TAG]>,
    ) -> CopiedPacket<impl Fn() -> std::array::IntoIter<&'a [u8], N>> {
        let length =
            parts.iter().map(|part| part.len()).sum::<usize>() + tag.map_or(0, |tag| tag.len());
        CopiedPacket {
            parts: move || parts.into_iter(),
            tag,
            length,
            checksum: RxChecksum::None,
            gso: None,
            layer: Layer::Ethernet,
            sent: false,
        }
    }

    #[test]
    fn a_tag_goes_back_behind_the_addresses_wherever_these_lie() {
        let bytes: Vec<u8> = (0..40).collect();
        let tagged = [&bytes[..12], &[0x81, 0, 0, 7], &bytes[12..]].concat();
        for cut in [0, 5, 12, 13, 40] {
            let (first, second) = bytes.split_at(cut);
            for wanted in [0, 11, 14, 16, 17, 44, 99] {
                let mut taken = Vec::new();
                packet([first, second], Some([0x81, 0, 0, 7]))
                    .take(wanted, |bytes| taken.extend_from_slice(bytes));
                assert_eq!(taken, tagged[..wanted.min(44)], "cut at {cut}, {wanted} bytes");
            }
        }
        let mut taken = Vec::new();
        packet([&bytes[..6]], Some([0x81, 0, 0, 7]))
            .take(99, |bytes| taken.extend_from_slice(bytes));
        assert_eq!(taken, bytes[..6], "there is no place for it");
    }

    #[test]
    fn a_super_packet_has_its_header_and_a_tag_moves_its_checksum() {
        let frame = Frame::tcp4(1, 3_000).to_bytes();
        let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(1_000).expect("not 0"));
        let checksum = RxChecksum::Partial { start: 34, offset: 16 };
        for (tag, start) in [(None, 34u16), (Some([0x81, 0, 0, 7]), 38)] {
            let VirtioHeader { length, header, outer_checksum } =
                CopiedPacket { checksum, gso: Some(gso), ..packet([&frame], tag) }.virtio();
            assert_eq!(outer_checksum, None);
            assert_eq!(length, 10);
            let read = Header::read(&header, Format::Plain, ByteOrder::Little).expect("whole");
            assert_eq!(
                (read.gso_size, read.csum_start, read.csum_offset, read.hdr_len),
                (1_000, start, 16, start + 20)
            );
        }
        assert_eq!(packet([&frame], None).virtio().length, 0, "there is nothing to say");
        // A `virtio_net_hdr` cannot contain a complete checksum that a device computed.
        assert_eq!(
            CopiedPacket { checksum: RxChecksum::Complete(0), ..packet([&frame], None) }
                .virtio()
                .length,
            0
        );
    }

    #[test]
    fn a_super_packet_in_a_tunnel_has_the_outer_checksum_that_its_header_demands() {
        let frame = Frame::tcp4(1, 3_000).in_vxlan4().with(|frame| {
            frame.tcp_mut().checksum = Checksum::Partial;
            frame.outer_udp_mut().checksum = Checksum::Right;
        });
        let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(1_000).expect("not 0"));
        let checksum = RxChecksum::Partial { start: frame.offsets().transport as u16, offset: 16 };
        let expected = frame
            .clone()
            .with(|frame| frame.outer_udp_mut().checksum = Checksum::Partial)
            .to_bytes();
        let bytes = frame.to_bytes();
        for cut in [0, 14, 39, 40, 41, 42, 43, 100] {
            let (first, second) = bytes.split_at(cut);
            let packet = CopiedPacket { checksum, gso: Some(gso), ..packet([first, second], None) };
            let VirtioHeader { length, outer_checksum, .. } = packet.virtio();
            assert_eq!(length, 24);
            for wanted in [40, 41, 42, 9_000] {
                let mut taken = Vec::new();
                packet.take_changed(wanted, outer_checksum, |bytes| taken.extend_from_slice(bytes));
                assert!(
                    taken == expected[..wanted.min(expected.len())],
                    "cut at {cut}, {wanted} bytes"
                );
            }
        }
    }
}
