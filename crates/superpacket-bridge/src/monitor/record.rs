//! The format in which packets are copied into rings, from threads that move packets to a monitor's
//! reader.

use superpacket::virtio::Format;

/// Length in bytes of the header that precedes each copied packet in a ring.
pub(super) const HEAD: usize = 56;

/// The header of a copied packet. It precedes the packet's bytes in a ring, in native byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Number of the interface in the capture.
    pub(super) interface: u32,
    /// Time of reception or sending, in nanoseconds since 1970.
    pub(super) time: u64,
    /// Number of bytes of the packet that follow the header.
    pub(super) captured: u32,
    /// Length of the packet in bytes, before it was cut to the snapshot length.
    pub(super) length: u32,
    /// True for a sent packet, false for a received one.
    pub(super) sent: bool,
    /// Length in bytes of the packet's `virtio_net_hdr`; 0 if it needs none.
    pub(super) virtio_length: u8,
    /// The `virtio_net_hdr`, little-endian.
    pub(super) virtio: [u8; Format::LONGEST],
}

impl RecordHead {
    /// Returns the number of bytes that the header and the copied packet take in a ring.
    pub(super) const fn total(&self) -> usize {
        HEAD + self.captured as usize
    }

    pub(super) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&self.time.to_ne_bytes());
        for (place, word) in
            bytes[8..20].chunks_exact_mut(4).zip([self.interface, self.captured, self.length])
        {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        (bytes[20], bytes[21]) = (self.sent.into(), self.virtio_length);
        bytes[32..].copy_from_slice(&self.virtio);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; HEAD]) -> Self {
        let word = |place: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[place..place + 4]);
            u32::from_ne_bytes(word)
        };
        let (mut time, mut virtio) = ([0; 8], [0; Format::LONGEST]);
        time.copy_from_slice(&bytes[..8]);
        virtio.copy_from_slice(&bytes[32..]);
        RecordHead {
            interface: word(8),
            time: u64::from_ne_bytes(time),
            captured: word(12),
            length: word(16),
            sent: bytes[20] != 0,
            virtio_length: bytes[21],
            virtio,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_is_written() {
        let mut virtio = [0; Format::LONGEST];
        virtio.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        let head = RecordHead {
            interface: 7,
            time: u64::MAX - 1,
            captured: 60,
            length: 70_000,
            sent: true,
            virtio_length: 10,
            virtio,
        };
        assert_eq!(RecordHead::from_bytes(&head.to_bytes()), head);
        assert_eq!(head.total(), 116);
    }
}
