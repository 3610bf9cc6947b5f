//! A copy of a packet on its way from the thread that moved it to the one that writes it.

use superpacket::virtio::Format;

/// Bytes of a record before those of its packet.
pub(super) const HEAD: usize = 56;

/// What is known of a copied packet. It lies before the packet's bytes in a ring of bytes, in the
/// machine's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// The number of the packet's interface in the stream.
    pub(super) interface: u32,
    /// When it was received or sent, in nanoseconds since 1970.
    pub(super) time: u64,
    /// Bytes of it that follow.
    pub(super) captured: u32,
    /// Bytes that it had.
    pub(super) length: u32,
    /// It was sent, not received.
    pub(super) sent: bool,
    /// Bytes of its `virtio_net_hdr`; 0: it needs none.
    pub(super) virtio_length: u8,
    /// The header, little-endian.
    pub(super) virtio: [u8; Format::LONGEST],
}

impl RecordHead {
    /// The bytes of the record, the packet's included.
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
