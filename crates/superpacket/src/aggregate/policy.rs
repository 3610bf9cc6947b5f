//! What to aggregate, how far, and how long to hold it: a value.

use crate::segment::ChecksumForm;

/// The largest IP packet of a 16-bit length field, in bytes.
pub const MAX_IP_LENGTH: u32 = 65_535;

/// The largest merged packet ("BIG TCP"): eight times [`MAX_IP_LENGTH`], as the kernel's
/// `GRO_MAX_SIZE`.
pub const MAX_BIG_LENGTH: u32 = 8 * MAX_IP_LENGTH;

/// By which rules packets merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Generic receive offload: what merges can be cut again into the very same frames. The
    /// kernel's `net/core/gro.c`, with stricter promises.
    Gro {
        /// Aggregate UDP datagrams of equal length too.
        udp: bool,
    },
    /// Large receive offload: for local delivery only. Acknowledgement, window and timestamps take
    /// the newest values, IP identifications and padding are given up. As the kernel's `inet_lro`
    /// of 2.6.24, without its faults.
    Lro {
        /// Absorb pure ACKs into the newest.
        acks: bool,
    },
}

/// How the bytes of a held packet are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// The buffers themselves are kept, and a merged packet is a list of ranges.
    #[default]
    Fragments,
    /// Everything is copied into one run of bytes, and the buffers are released at once.
    Linear,
}

/// When held packets are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Flows are held until the caller ends the poll: a driver that polls (NAPI).
    #[default]
    PerPoll,
    /// Every call of `receive` or `receive_batch` is a poll of its own and leaves nothing held: a
    /// driver without one.
    AtOnce,
}

/// What an aggregator does.
///
/// Made by [`gro`](Self::gro) or [`lro`](Self::lro), and changed field by field, or by the methods
/// that return a changed copy. Limits that make no sense are brought into range where they are
/// used: `max_bytes` to at most [`MAX_BIG_LENGTH`], `max_flows` to 1 to 1,048,576, the other limits
/// to at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The rules.
    pub mode: Mode,
    /// The longest merged packet, in bytes from the outermost IP header; above 65,535 only for TCP
    /// outside tunnels and PPPoE and without IPv6 extension headers (BIG TCP).
    pub max_bytes: u32,
    /// The most packets in one; of a super-packet that is received each segment counts.
    pub max_packets: u32,
    /// The most UDP datagrams in one, likewise: 64 in the kernel (`UDP_GRO_CNT_MAX`).
    pub max_datagrams: u32,
    /// The most pieces of buffers in one.
    pub max_fragments: u32,
    /// The most flows held at a time.
    pub max_flows: u32,
    /// The most bytes of frames held at a time.
    pub max_held_bytes: u64,
    /// How long a flow may be held past the end of a poll, in nanoseconds; 0: not at all
    /// (`gro_flush_timeout`).
    pub hold_time: u64,
    /// How bytes are kept.
    pub storage: Storage,
    /// When they are handed over.
    pub delivery: Delivery,
    /// How the checksum of a merged GRO packet leaves: complete, or partial, as a device would be
    /// asked to fill it in. LRO packets leave complete.
    pub checksum: ChecksumForm,
    /// GRO with partial checksums: checksums of which nothing is known count as correct, and no
    /// payload is read for them. Off by default: every packet is verified before it merges.
    ///
    /// A packet that was damaged before it reached this host then merges as well, and whoever
    /// completes the partial checksum makes it correct: the receiver takes damaged data for good
    /// data. A tunnel's cipher does not prevent this. It proves that the peer sent these bytes, not
    /// that they reached the peer intact. What leaves alone keeps its bytes, and is described as
    /// verified. Set it only where somebody has verified the checksums before.
    ///
    /// With complete checksums, and in LRO, packets are verified all the same: one damaged packet
    /// would make the merged checksum wrong, and the valid packets beside it would be lost.
    pub trusted_input: bool,
    /// GRO: PSH on a packet that came as a super-packet does not end a merged packet. What is cut
    /// from that has PSH on the last segment only: it differs from what came in this flag alone.
    ///
    /// Linux's TCP sets PSH on each super-packet that it hands to a device
    /// (`__tcp_transmit_skb`), wherever a write of its application ended. Without this, no
    /// super-packets of Linux hosts merge further.
    pub merge_past_push: bool,
    /// GRO: UDP datagrams over IPv4 without a checksum (RFC 768: a field of 0) merge with each
    /// other. They leave without one too, and what is cut from them has none, as came in. No
    /// `virtio_net_hdr` can say so: behind one they leave with a partial checksum, and whoever
    /// fills it in writes checksums that nobody sent.
    ///
    /// Nothing tells then whether a payload is what was sent: a sum that damage made 0 passes as
    /// none. Linux does not merge them (`udp_gro_receive_segment`).
    pub merge_udp_without_checksum: bool,
    /// GRO: TCP packets merge although their IPv4 identifications do not go on, their lengths
    /// differ, or one before the last has PSH. The super-packet has the union of their flags, and
    /// says in [parts] how it comes apart: segmentation restores the very packets. Outside tunnels
    /// and PPPoE only.
    ///
    /// For consumers that cut with this crate or do not cut: a forwarder that cuts in software, a
    /// stack. No `virtio_net_hdr` can say it: behind one, and where packets are joined in their own
    /// buffers, it is off. With it, PSH is never given up (`merge_past_push`).
    ///
    /// [parts]: crate::super_packet::SuperPacket::parts
    pub merge_uneven: bool,
    /// An IPv6 packet of more than 65,575 bytes, whose length its header cannot say, leaves
    /// with a hop-by-hop header that says it (RFC 2675), as Linux wrote before its receivers took a
    /// length of 0 without. Segmentation removes it. Where packets are joined in their own buffers
    /// there is no room for it.
    pub jumbo_option: bool,
}

/// Methods that return the policy with another value in a field.
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
    /// GRO: TCP and DCCP, up to 65,535 bytes, 1,024 flows, nothing held past the poll. Checksums
    /// are verified where the device has not, and leave complete, so that any stack or device takes
    /// the packet.
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
            merge_uneven: false,
            jumbo_option: false,
        }
    }

    /// GRO with UDP aggregation.
    pub const fn gro_with_udp() -> Self {
        Policy { mode: Mode::Gro { udp: true }, ..Self::gro() }
    }

    /// LRO: 8 flows, as the drivers of 2007 had, pure ACKs left alone.
    pub const fn lro() -> Self {
        Policy { mode: Mode::Lro { acks: false }, max_flows: 8, ..Self::gro() }
    }

    /// LRO with pure-ACK aggregation.
    pub const fn lro_with_acks() -> Self {
        Policy { mode: Mode::Lro { acks: true }, ..Self::lro() }
    }

    /// The same policy without verification: see [`trusted_input`](Self::trusted_input) for what
    /// is given up.
    #[must_use]
    pub const fn with_trusted_input(self) -> Self {
        Policy { trusted_input: true, ..self }
    }

    /// The same policy, by which super-packets with PSH merge further: see
    /// [`merge_past_push`](Self::merge_past_push).
    #[must_use]
    pub const fn with_merge_past_push(self) -> Self {
        Policy { merge_past_push: true, ..self }
    }

    /// The same policy, by which UDP datagrams over IPv4 without a checksum merge: see
    /// [`merge_udp_without_checksum`](Self::merge_udp_without_checksum).
    #[must_use]
    pub const fn with_merge_udp_without_checksum(self) -> Self {
        Policy { merge_udp_without_checksum: true, ..self }
    }

    /// The same policy, by which TCP packets merge that are not alike: see
    /// [`merge_uneven`](Self::merge_uneven).
    #[must_use]
    pub const fn with_merge_uneven(self) -> Self {
        Policy { merge_uneven: true, ..self }
    }

    /// The same policy, by which the longest IPv6 packets have a jumbo payload option: see
    /// [`jumbo_option`](Self::jumbo_option).
    #[must_use]
    pub const fn with_jumbo_option(self) -> Self {
        Policy { jumbo_option: true, ..self }
    }

    /// The same policy, whose merged packets leave with partial checksums: for whoever fills them
    /// in, a kernel behind a `virtio_net_hdr` or a device. A stack that verifies them takes such a
    /// packet for damaged.
    #[must_use]
    pub const fn with_partial_checksums(self) -> Self {
        Policy { checksum: ChecksumForm::Partial, ..self }
    }

    with! {
        /// The same policy with other [rules](Self::mode).
        with_mode, mode: Mode;
        /// The same policy with another limit of [bytes](Self::max_bytes).
        with_max_bytes, max_bytes: u32;
        /// The same policy with another limit of [packets](Self::max_packets).
        with_max_packets, max_packets: u32;
        /// The same policy with another limit of [datagrams](Self::max_datagrams).
        with_max_datagrams, max_datagrams: u32;
        /// The same policy with another limit of [fragments](Self::max_fragments).
        with_max_fragments, max_fragments: u32;
        /// The same policy with another limit of [flows](Self::max_flows).
        with_max_flows, max_flows: u32;
        /// The same policy with another limit of [held bytes](Self::max_held_bytes).
        with_max_held_bytes, max_held_bytes: u64;
        /// The same policy with another [hold time](Self::hold_time) in nanoseconds.
        with_hold_time, hold_time: u64;
        /// The same policy with another [storage](Self::storage).
        with_storage, storage: Storage;
        /// The same policy with another [delivery](Self::delivery).
        with_delivery, delivery: Delivery;
        /// The same policy with another [form of checksums](Self::checksum).
        with_checksum, checksum: ChecksumForm;
    }

    /// Returns whether unknown checksums count as correct: not where merged packets leave with
    /// complete checksums, which are made of the packets' own.
    pub(super) fn trusts_input(&self) -> bool {
        self.trusted_input
            && self.checksum == ChecksumForm::Partial
            && matches!(self.mode, Mode::Gro { .. })
    }

    /// The policy with all limits in range.
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
