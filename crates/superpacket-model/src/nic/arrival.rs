//! A frame as it comes from the wire: its tag, its padding, its first bytes in one piece.

use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket::wire::{MAX_HEADER, ethernet};
use superpacket_port::Buffer;

use super::settings::{NicSettings, Padding};
use crate::fit::{TAG, link_header};

/// The shortest frame on a wire, in bytes without the frame check sequence (IEEE 802.3).
const SHORTEST: usize = 60;

/// What padding holds where it is not zero.
const GARBAGE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Bytes of the two hardware addresses, behind which a tag goes.
const ADDRESSES: usize = 12;

/// A frame that has arrived: its first bytes, up to [`MAX_HEADER`], and the rest where it lies.
pub(super) struct Arrival<'a, I> {
    head: [u8; MAX_HEADER],
    filled: usize,
    /// What is left of the slice that the head ends in.
    current: &'a [u8],
    rest: I,
    /// Length in bytes, without a stripped tag.
    pub(super) length: usize,
    /// Length on the wire.
    pub(super) wire_length: usize,
    /// The tag that was taken out.
    pub(super) vlan: Option<VlanTag>,
    pub(super) padded: bool,
    /// The tag was taken out here, and not before.
    pub(super) stripped: bool,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Arrival<'a, I> {
    /// A frame of `length` bytes in slices, with a tag that has been taken out of it before.
    pub(super) fn new(
        slices: I,
        length: usize,
        vlan: Option<VlanTag>,
        settings: &NicSettings,
    ) -> Self {
        let mut arrival = Arrival {
            head: [0; MAX_HEADER],
            filled: 0,
            current: &[],
            rest: slices,
            length,
            wire_length: length,
            vlan,
            padded: false,
            stripped: false,
        };
        // Room is left for a tag.
        arrival.gather(MAX_HEADER - TAG);
        if let Some(tag) = vlan {
            arrival.wire_length += TAG;
            if !settings.strip_vlan {
                arrival.put_tag(tag);
            }
        }
        arrival.pad(settings.padding);
        if settings.strip_vlan && arrival.vlan.is_none() {
            arrival.take_tag();
        }
        arrival
    }

    /// The first bytes: [`MAX_HEADER`] but for a tag's length, or all.
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..self.filled]
    }

    /// Bytes from the IP header on.
    pub(super) fn above_link(&self) -> usize {
        self.length.saturating_sub(link_header(self.head(), Layer::Ethernet))
    }

    /// All bytes: the head, and what is behind it, once.
    pub(super) fn slices(&mut self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..self.filled], self.current]
            .into_iter()
            .chain(self.rest.by_ref().map(|slice| -> &[u8] { slice }))
    }

    fn gather(&mut self, wanted: usize) {
        while self.filled < wanted {
            if self.current.is_empty() {
                match self.rest.next() {
                    Some(slice) => self.current = slice,
                    None => break,
                }
            }
            let (now, later) = self.current.split_at(self.current.len().min(wanted - self.filled));
            self.head[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            self.current = later;
        }
    }

    fn put_tag(&mut self, tag: VlanTag) {
        if self.filled < ADDRESSES {
            return;
        }
        self.head.copy_within(ADDRESSES..self.filled, ADDRESSES + TAG);
        self.head[ADDRESSES..ADDRESSES + 2].copy_from_slice(&tag.protocol.to_be_bytes());
        self.head[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&tag.control.to_be_bytes());
        self.filled += TAG;
        self.length += TAG;
        self.vlan = None;
    }

    /// Pads what is short on the wire; that lies in the head whole.
    fn pad(&mut self, padding: Padding) {
        if padding == Padding::Off || self.wire_length >= SHORTEST {
            return;
        }
        let missing = SHORTEST - self.wire_length;
        for (byte, garbage) in
            self.head[self.filled..self.filled + missing].iter_mut().zip(GARBAGE.iter().cycle())
        {
            *byte = if padding == Padding::Garbage { *garbage } else { 0 };
        }
        self.filled += missing;
        self.length += missing;
        self.wire_length += missing;
        self.padded = true;
    }

    fn take_tag(&mut self) {
        let word = |place: usize| u16::from_be_bytes([self.head[place], self.head[place + 1]]);
        let (protocol, control) = (word(ethernet::ETHERTYPE), word(ethernet::ETHERTYPE + 2));
        if self.filled < ethernet::HEADER_LENGTH + TAG || !ethernet::is_vlan(protocol) {
            return;
        }
        self.head.copy_within(ADDRESSES + TAG..self.filled, ADDRESSES);
        self.filled -= TAG;
        self.length -= TAG;
        self.vlan = Some(VlanTag { protocol, control });
        self.stripped = true;
    }
}

/// Must the packet be made wire frames first?
pub(super) fn is_plain(packet: &RxPacket<Buffer>) -> bool {
    packet.gso.is_none() && !matches!(packet.checksum, RxChecksum::Partial { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frame as it is delivered, and the tag.
    fn arrive(
        frame: &[u8],
        vlan: Option<VlanTag>,
        settings: &NicSettings,
    ) -> (Vec<u8>, Option<VlanTag>, usize) {
        // In odd pieces.
        let mut arrival = Arrival::new(frame.chunks(7), frame.len(), vlan, settings);
        let (length, tag, wire) = (arrival.length, arrival.vlan, arrival.wire_length);
        let bytes = arrival.slices().collect::<Vec<_>>().concat();
        assert_eq!(bytes.len(), length);
        (bytes, tag, wire)
    }

    #[test]
    fn a_tag_stands_where_the_settings_say() {
        let tag = VlanTag { protocol: 0x8100, control: 0x2064 };
        let plain: Vec<u8> = (0..12).chain([8, 0]).chain(20..250).chain(0..250).collect();
        let tagged = [&plain[..12], &[0x81, 0, 0x20, 0x64], &plain[12..]].concat();
        let (strip, keep) =
            (NicSettings::default(), NicSettings { strip_vlan: false, ..NicSettings::default() });
        assert_eq!(arrive(&tagged, None, &strip), (plain.clone(), Some(tag), tagged.len()));
        assert_eq!(arrive(&plain, Some(tag), &strip), (plain.clone(), Some(tag), tagged.len()));
        assert_eq!(arrive(&tagged, None, &keep), (tagged.clone(), None, tagged.len()));
        assert_eq!(arrive(&plain, Some(tag), &keep), (tagged.clone(), None, tagged.len()));
        assert_eq!(arrive(&plain, None, &keep), (plain.clone(), None, plain.len()));
        // Of two tags the outer one goes.
        assert_eq!(
            arrive(&tagged, Some(tag), &strip),
            (tagged.clone(), Some(tag), tagged.len() + 4)
        );
    }

    #[test]
    fn short_frames_are_padded_on_the_wire() {
        let tag = VlanTag { protocol: 0x88a8, control: 1 };
        for (padding, byte) in [(Padding::Zero, 0), (Padding::Garbage, 0xde)] {
            let settings = NicSettings { padding, ..NicSettings::default() };
            for length in [0, 14, 42, 59, 60, 61] {
                let frame = vec![7; length];
                let (bytes, _, wire) = arrive(&frame, None, &settings);
                assert_eq!((wire, &bytes[..length]), (length.max(60), &frame[..]));
                assert!(bytes.get(length).is_none_or(|&first| first == byte));
            }
            // A tag counts on the wire, and is gone then.
            assert_eq!(arrive(&[7; 50], Some(tag), &settings).0.len(), 56);
            let keep = NicSettings { strip_vlan: false, ..settings };
            assert_eq!(arrive(&[7; 50], Some(tag), &keep).0.len(), 60);
        }
        assert_eq!(arrive(&[7; 20], None, &NicSettings::default()).0.len(), 20);
    }
}
