//! A frame as it arrives from the wire, with the card's VLAN tag and padding settings applied.

use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket::wire::{MAX_HEADER, ethernet};
use superpacket_port::Buffer;

use super::settings::{NicSettings, Padding};
use crate::fit::{TAG, link_header};

/// Minimum length of a frame on a wire, in bytes without the frame check sequence (IEEE 802.3).
const SHORTEST: usize = 60;

/// The pattern with which frames are padded, unless padding consists of zeros.
const GARBAGE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// Length of the two MAC addresses, in bytes. A VLAN tag follows them.
const ADDRESSES: usize = 12;

/// An arrived frame: a copy of its first [`MAX_HEADER`] bytes, and the remaining bytes in their
/// original slices.
pub(super) struct ArrivedFrame<'a, I> {
    head: [u8; MAX_HEADER],
    /// Number of bytes of the frame that `head` holds.
    filled: usize,
    /// The uncopied rest of the slice from which the last bytes of `head` were copied.
    current: &'a [u8],
    /// The slices of the frame that follow `current`.
    rest: I,
    /// Length of the frame in bytes, with padding but without a stripped VLAN tag.
    pub(super) length: usize,
    /// Length of the frame on the wire in bytes, with padding and VLAN tag.
    pub(super) wire_length: usize,
    /// The VLAN tag that was stripped from the frame's bytes, by this card or by the wrapped port.
    pub(super) vlan: Option<VlanTag>,
    /// Whether the frame was padded on arrival.
    pub(super) padded: bool,
    /// Whether this card stripped the VLAN tag. If not, the wrapped port may have stripped it.
    pub(super) stripped: bool,
}

impl<'a, I: Iterator<Item = &'a [u8]>> ArrivedFrame<'a, I> {
    /// Creates a frame of `length` bytes from its slices. `vlan` is a tag that the wrapped port has
    /// already stripped.
    pub(super) fn new(
        slices: I,
        length: usize,
        vlan: Option<VlanTag>,
        settings: &NicSettings,
    ) -> Self {
        let mut arrival = ArrivedFrame {
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
        // Leave room for a tag.
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

    /// Returns the start of the frame: about [`MAX_HEADER`] bytes, or the whole frame.
    pub(super) fn head(&self) -> &[u8] {
        &self.head[..self.filled]
    }

    /// Returns the frame's length from the IP header on, in bytes.
    pub(super) fn above_link(&self) -> usize {
        self.length.saturating_sub(link_header(self.head(), Layer::Ethernet))
    }

    /// Returns all bytes of the frame in slices. It can be called only once.
    pub(super) fn slices(&mut self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..self.filled], self.current]
            .into_iter()
            .chain(self.rest.by_ref().map(|slice| -> &[u8] { slice }))
    }

    /// Copies bytes from the slices into the head until it holds `wanted` bytes.
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

    /// Inserts a VLAN tag behind the MAC addresses.
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

    /// Pads a frame that is too short for a wire. The whole of such a frame lies in the head.
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

    /// Strips the outermost VLAN tag, if there is one.
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

/// Returns whether the packet is already as on a wire: no super-packet, and no partial checksum.
pub(super) fn is_plain(packet: &RxPacket<Buffer>) -> bool {
    packet.gso.is_none() && !matches!(packet.checksum, RxChecksum::Partial { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frame's bytes, its stripped tag, and its length on the wire.
    fn arrive(
        frame: &[u8],
        vlan: Option<VlanTag>,
        settings: &NicSettings,
    ) -> (Vec<u8>, Option<VlanTag>, usize) {
        // Slices of odd length.
        let mut arrival = ArrivedFrame::new(frame.chunks(7), frame.len(), vlan, settings);
        let (length, tag, wire) = (arrival.length, arrival.vlan, arrival.wire_length);
        let bytes = arrival.slices().collect::<Vec<_>>().concat();
        assert_eq!(bytes.len(), length);
        (bytes, tag, wire)
    }

    #[test]
    fn a_tag_is_stripped_or_kept_as_set() {
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
        // Only the outer one of two tags is stripped.
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
            // A stripped tag counts towards the minimum length.
            assert_eq!(arrive(&[7; 50], Some(tag), &settings).0.len(), 56);
            let keep = NicSettings { strip_vlan: false, ..settings };
            assert_eq!(arrive(&[7; 50], Some(tag), &keep).0.len(), 60);
        }
        assert_eq!(arrive(&[7; 20], None, &NicSettings::default()).0.len(), 20);
    }
}
