//! The settings of an aggregator: which packets merge, up to which limits, and how long packets are
//! held.

use crate::segment::ChecksumForm;

/// Maximum length of an IP packet with a 16-bit length field, in bytes.
pub const MAX_IP_LENGTH: u32 = 65_535;

/// Maximum length of a merged packet ("BIG TCP") in bytes: eight times [`MAX_IP_LENGTH`], as the
/// kernel's `GRO_MAX_SIZE`.
pub const MAX_BIG_LENGTH: u32 = 8 * MAX_IP_LENGTH;

/// The rules by which packets merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Generic receive offload: a merged packet can be segmented into exactly the same frames. Like
    /// the kernel's `net/core/gro.c`, with stricter promises.
    Gro {
        /// Whether UDP datagrams of equal length merge too.
        udp: bool,
    },
    /// Large receive offload, for local delivery only. Acknowledgement, window and timestamps take
    /// the newest values; IP identifications and padding are lost. Like the kernel's `inet_lro` of
    /// 2.6.24, without its bugs.
    Lro {
        /// Whether pure ACKs are absorbed into the newest one.
        acks: bool,
    },
}

/// How the bytes of a held packet are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// The buffers are kept, and a merged packet is a list of ranges in them.
    #[default]
    Fragments,
    /// All bytes are copied into one contiguous buffer, and the packets' buffers are released at
    /// once.
    Linear,
}

/// The time at which held packets are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// At the end of a poll, which the caller signals: for a driver that polls (NAPI).
    #[default]
    PerPoll,
    /// At the end of each call of `receive` or `receive_batch`: for a driver that does not poll.
    AtOnce,
}

/// The settings of an aggregator.
///
/// Make one with [`gro`](Self::gro) or [`lro`](Self::lro), and change fields or use the methods
/// that return a changed copy. Limits out of range are corrected when they are used: `max_bytes` to
/// at most [`MAX_BIG_LENGTH`], `max_flows` to 1 to 1,048,576, other limits to at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The rules by which packets merge.
    pub mode: Mode,
    /// Maximum length of a merged packet in bytes, from the outermost IP header. More than 65,535
    /// applies only to TCP without tunnels, PPPoE and IPv6 extension headers (BIG TCP).
    pub max_bytes: u32,
    /// Maximum number of packets in a merged packet. Each segment of a received super-packet
    /// counts.
    pub max_packets: u32,
    /// Maximum number of UDP datagrams in a merged packet, each segment of a received super-packet
    /// included; 64 in the kernel (`UDP_GRO_CNT_MAX`).
    pub max_datagrams: u32,
    /// Maximum number of buffers (fragments) in a merged packet.
    pub max_fragments: u32,
    /// Maximum number of flows held at a time.
    pub max_flows: u32,
    /// Maximum number of frame bytes held at a time.
    pub max_held_bytes: u64,
    /// Time that a flow may be held after the end of a poll, in nanoseconds (`gro_flush_timeout`);
    /// 0 to hold none.
    pub hold_time: u64,
    /// How the bytes of held packets are kept.
    pub storage: Storage,
    /// When held packets are delivered.
    pub delivery: Delivery,
    /// Form of the checksums of merged GRO packets: complete, or partial, to be completed by a
    /// device. LRO packets always have complete checksums.
    pub checksum: ChecksumForm,
    /// GRO with partial checksums: whether checksums that no device has verified count as correct,
    /// so that no payload is read for them. Off by default: every packet is verified before it
    /// merges.
    ///
    /// If it is on, a packet that was damaged before it reached this host merges too, and
    /// completing the partial checksum makes it correct: the receiver accepts damaged data. A
    /// tunnel's cipher does not prevent this, because it proves only that the peer sent these
    /// bytes, not that they reached the peer intact. A packet that leaves alone keeps its bytes and
    /// is marked as verified. Set this only if the checksums have been verified before.
    ///
    /// With complete checksums, and in LRO mode, packets are verified anyway. Otherwise one damaged
    /// packet would make the merged checksum wrong, and the valid packets merged with it would be
    /// lost.
    pub trusted_input: bool,
    /// GRO: whether PSH on a packet that came as a super-packet does not end a merged packet. After
    /// segmentation, only the last segment has PSH; this flag is the only difference from the
    /// received packets.
    ///
    /// Linux's TCP sets PSH on each super-packet that it hands to a device (`__tcp_transmit_skb`),
    /// where a write of the application ended. Without this option, super-packets of Linux hosts do
    /// not merge further.
    pub merge_past_push: bool,
    /// GRO: whether UDP datagrams over IPv4 without a checksum (RFC 768: a field of 0) merge with
    /// each other. They leave without a checksum, and so do their segments. No `virtio_net_hdr` can
    /// express this: behind one, they leave with a partial checksum, and the receiver that
    /// completes it adds checksums that were not sent.
    ///
    /// Without a checksum, damage to the payload is not detected, and a checksum that damage turned
    /// into 0 counts as absent. Linux does not merge these datagrams (`udp_gro_receive_segment`).
    pub merge_udp_without_checksum: bool,
    /// Whether an IPv6 packet of more than 65,575 bytes, whose length its header cannot hold,
    /// leaves with a hop-by-hop header that holds the length (RFC 2675). Older Linux receivers need
    /// it; newer ones accept a length of 0. Segmentation removes the header. Packets that are
    /// joined in their own buffers have no room for it.
    pub jumbo_option: bool,
}

/// Defines a method for each field that returns the policy with another value of that field.
macro_rules! with {
    ($($(#[$doc:meta])* $method:ident, $field:ident: $type:ty;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub const fn $method(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        })*
    };
}

impl Policy {
    /// Returns the default GRO policy: merges TCP and DCCP, up to 65,535 bytes and 1,024 flows, and
    /// holds no packet after the end of a poll. Checksums that no device has verified are verified
    /// in software. Merged packets leave with complete checksums, so that any stack or device
    /// accepts them.
    pub const fn gro() -> Self {
        Policy {
            mode: Mode::Gro { udp: false },
            max_bytes: MAX_IP_LENGTH,
            max_packets: u32::MAX,
            max_datagrams: 64,
            max_fragments: u32::MAX,
            max_flows: 1024,
            max_held_bytes: 32 << 20,
            hold_time: 0,
            storage: Storage::Fragments,
            delivery: Delivery::PerPoll,
            checksum: ChecksumForm::Full,
            trusted_input: false,
            merge_past_push: false,
            merge_udp_without_checksum: false,
            jumbo_option: false,
        }
    }

    /// Returns a policy of GRO that also merges UDP datagrams.
    pub const fn gro_with_udp() -> Self {
        Policy { mode: Mode::Gro { udp: true }, ..Self::gro() }
    }

    /// Returns a policy of LRO with 8 flows, as in the drivers of 2007. Pure ACKs are not merged.
    pub const fn lro() -> Self {
        Policy { mode: Mode::Lro { acks: false }, max_flows: 8, ..Self::gro() }
    }

    /// Returns a policy of LRO that also merges pure ACKs.
    pub const fn lro_with_acks() -> Self {
        Policy { mode: Mode::Lro { acks: true }, ..Self::lro() }
    }

    /// Returns the policy with checksums trusted instead of verified; see
    /// [`trusted_input`](Self::trusted_input) for the risk.
    #[must_use]
    pub const fn with_trusted_input(self) -> Self {
        Policy { trusted_input: true, ..self }
    }

    /// Returns the policy with merging of super-packets past PSH; see
    /// [`merge_past_push`](Self::merge_past_push).
    #[must_use]
    pub const fn with_merge_past_push(self) -> Self {
        Policy { merge_past_push: true, ..self }
    }

    /// Returns the policy with merging of UDP datagrams without a checksum; see
    /// [`merge_udp_without_checksum`](Self::merge_udp_without_checksum).
    #[must_use]
    pub const fn with_merge_udp_without_checksum(self) -> Self {
        Policy { merge_udp_without_checksum: true, ..self }
    }

    /// Returns the policy with a jumbo payload option on the longest IPv6 packets; see
    /// [`jumbo_option`](Self::jumbo_option).
    #[must_use]
    pub const fn with_jumbo_option(self) -> Self {
        Policy { jumbo_option: true, ..self }
    }

    /// Returns the policy with partial checksums on merged packets, for a receiver that completes
    /// them: a kernel that reads the `virtio_net_hdr`, or a device. A stack that verifies checksums
    /// itself would drop such packets.
    #[must_use]
    pub const fn with_partial_checksums(self) -> Self {
        Policy { checksum: ChecksumForm::Partial, ..self }
    }

    with! {
        /// Returns the policy with other [rules](Self::mode).
        with_mode, mode: Mode;
        /// Returns the policy with another limit of [bytes](Self::max_bytes).
        with_max_bytes, max_bytes: u32;
        /// Returns the policy with another limit of [packets](Self::max_packets).
        with_max_packets, max_packets: u32;
        /// Returns the policy with another limit of [datagrams](Self::max_datagrams).
        with_max_datagrams, max_datagrams: u32;
        /// Returns the policy with another limit of [fragments](Self::max_fragments).
        with_max_fragments, max_fragments: u32;
        /// Returns the policy with another limit of [flows](Self::max_flows).
        with_max_flows, max_flows: u32;
        /// Returns the policy with another limit of [held bytes](Self::max_held_bytes).
        with_max_held_bytes, max_held_bytes: u64;
        /// Returns the policy with another [hold time](Self::hold_time) in nanoseconds.
        with_hold_time, hold_time: u64;
        /// Returns the policy with another [storage](Self::storage).
        with_storage, storage: Storage;
        /// Returns the policy with another [delivery](Self::delivery).
        with_delivery, delivery: Delivery;
        /// Returns the policy with another [form of checksums](Self::checksum).
        with_checksum, checksum: ChecksumForm;
    }

    /// Returns whether checksums that no device has verified count as correct. False if merged
    /// packets leave with complete checksums, which are computed from the checksums of the received
    /// packets.
    pub(super) fn trusts_input(&self) -> bool {
        self.trusted_input
            && self.checksum == ChecksumForm::Partial
            && matches!(self.mode, Mode::Gro { .. })
    }

    /// Returns the policy with each limit that is out of range replaced by the nearest valid value.
    pub(super) fn in_range(self) -> Self {
        Policy {
            max_bytes: self.max_bytes.min(MAX_BIG_LENGTH),
            max_flows: self.max_flows.clamp(1, 1 << 20),
            max_packets: self.max_packets.max(1),
            max_datagrams: self.max_datagrams.max(1),
            max_fragments: self.max_fragments.max(1),
            ..self
        }
    }
}
