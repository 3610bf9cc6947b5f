//! The aggregation policy: a structure that can grow.

#![expect(unsafe_code, reason = "the border to C")]

use std::mem::MaybeUninit;
use std::ptr;

use superpacket::aggregate::{Mode, Policy};
use superpacket::virtio::{ByteOrder, Format};
use superpacket::{Framing, HashKey, Layer};

use crate::memory::misaligned;
use crate::packet::layer;
use crate::status::Failure;

/// Generic receive offload of TCP and DCCP: merged packets can be segmented into the original
/// frames.
pub const SP_MODE_GRO: u32 = 0;
/// As SP_MODE_GRO, also for UDP datagrams of equal length.
pub const SP_MODE_GRO_UDP: u32 = 1;
/// Large receive offload, only for local delivery. Acknowledgements, windows and timestamps take
/// the newest values.
pub const SP_MODE_LRO: u32 = 2;
/// As SP_MODE_LRO, and pure ACKs are absorbed into the newest one.
pub const SP_MODE_LRO_ACKS: u32 = 3;

/// Checksums of unknown state count as correct, and payloads are not read. A damaged packet may
/// then merge, and completing the partial checksum makes it look correct. A cipher does not prevent
/// this: it proves that the peer sent these bytes, not that they reached the peer intact. Without
/// effect if merged packets leave with complete checksums.
pub const SP_POLICY_TRUSTED_INPUT: u32 = 1;
/// Merged packets leave with partial checksums, for a device or a kernel that completes them. A
/// stack that verifies checksums treats such a packet as damaged.
pub const SP_POLICY_PARTIAL_CHECKSUMS: u32 = 2;
/// The hash key of the flow table is the field key instead of a random number, for reproducible
/// tests.
pub const SP_POLICY_FIXED_KEY: u32 = 4;

const FLAGS: u32 = SP_POLICY_TRUSTED_INPUT | SP_POLICY_PARTIAL_CHECKSUMS | SP_POLICY_FIXED_KEY;

/// virtio_net_hdr in host byte order: the default of TUN and packet sockets.
pub const SP_ORDER_NATIVE: u32 = 0;
/// virtio_net_hdr in little-endian order: virtio 1.0, TUN after TUNSETVNETLE.
pub const SP_ORDER_LITTLE: u32 = 1;
/// virtio_net_hdr in big-endian order: TUN after TUNSETVNETBE.
pub const SP_ORDER_BIG: u32 = 2;

/// Default limit of ranges per packet. With two ranges of headers, it is the maximum of writev(2)
/// on Linux.
pub const SP_DEFAULT_FRAGMENTS: u32 = 1022;

/// The aggregation policy.
///
/// Set all of it to 0, then size to sizeof(struct sp_policy), then the fields that differ from the
/// default: 0 is the default of each field. Later releases add fields at its end. A program
/// compiled with an older header passes the older size, and gets the defaults of the newer fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_policy {
    /// sizeof(struct sp_policy).
    pub size: usize,
    /// SP_MODE_GRO or another mode.
    pub mode: u32,
    /// SP_LAYER_ETHERNET or SP_LAYER_IP.
    pub layer: u32,
    /// SP_POLICY_TRUSTED_INPUT and other flags. 0: the library verifies every checksum that no
    /// device has verified.
    pub flags: u32,
    /// Length of the virtio_net_hdr before each packet that a batch puts out: 10, 12, 20 or 24
    /// bytes, or 0 for none. With a header, merged packets have partial checksums, which the header
    /// asks the device to complete.
    pub virtio_length: u32,
    /// Byte order of the virtio_net_hdr: SP_ORDER_NATIVE or another SP_ORDER constant.
    pub virtio_order: u32,
    /// Maximum length of a merged packet, in bytes from the outermost IP header on. 0: 65,535. Up
    /// to 524,280 for TCP (BIG TCP).
    pub max_bytes: u32,
    /// Maximum number of packets that are merged into one packet. 0: no limit.
    pub max_packets: u32,
    /// Maximum number of UDP datagrams that are merged into one packet. 0: 64.
    pub max_datagrams: u32,
    /// Maximum number of buffer ranges per packet. 0: SP_DEFAULT_FRAGMENTS.
    pub max_fragments: u32,
    /// Maximum number of held flows. 0: 1,024, or 8 for LRO.
    pub max_flows: u32,
    /// Maximum total length of held frames, in bytes. 0: 32 MiB.
    pub max_held_bytes: u64,
    /// Time for which an sp_aggregator may hold a flow past sp_aggregator_poll_end, in nanoseconds.
    /// 0: none. An sp_batch ignores it.
    pub hold_time: u64,
    /// With SP_POLICY_FIXED_KEY: the key of 128 bits.
    pub key: [u64; 2],
}

/// Copies a structure that begins with its size. Fields that the caller's version lacks are 0.
///
/// # Safety
/// `given` is NULL, or points to a structure that begins with its size in bytes as a `usize`, and
/// as many bytes can be read there. Any bytes are a value of `T`.
pub(crate) unsafe fn sized<T: Copy>(
    what: &'static str,
    given: *const T,
    least: usize,
) -> Result<T, Failure> {
    if given.is_null() {
        return Err(Failure::Null(what));
    }
    if !given.is_aligned() {
        return Err(misaligned(what, given));
    }
    let known = size_of::<T>();
    // SAFETY: the caller promises that it begins with its size.
    let got = unsafe { given.cast::<usize>().read() };
    // A size of many kilobytes means that the field was not set.
    if got < least || got > 4096 {
        return Err(Failure::Structure { what, got, known });
    }
    // SAFETY: the caller promises that `got` bytes can be read.
    let beyond = (known..got).any(|index| unsafe { given.cast::<u8>().add(index).read() } != 0);
    if beyond {
        return Err(Failure::Structure { what, got, known });
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: both have at least this many bytes, and a local variable does not overlap the
    // caller's memory.
    unsafe {
        ptr::copy_nonoverlapping(given.cast::<u8>(), copy.as_mut_ptr().cast(), got.min(known))
    };
    // SAFETY: all bytes are initialized, and the caller promises that any bytes are a value of `T`.
    Ok(unsafe { copy.assume_init() })
}

/// The caller's policy as values of the engine.
pub(crate) struct ParsedPolicy {
    pub(crate) policy: Policy,
    pub(crate) layer: Layer,
    pub(crate) framing: Option<Framing>,
    pub(crate) key: HashKey,
}

/// Returns the format and byte order of a virtio_net_hdr.
pub(crate) fn framing(length: u32, order: u32, layer: Layer) -> Result<Framing, Failure> {
    let format = Format::of_length(length as usize);
    let format = format.ok_or(Failure::Argument {
        what: "the length of the virtio_net_hdr",
        got: u64::from(length),
    })?;
    let order = match order {
        SP_ORDER_NATIVE => ByteOrder::NATIVE,
        SP_ORDER_LITTLE => ByteOrder::Little,
        SP_ORDER_BIG => ByteOrder::Big,
        other => {
            return Err(Failure::Argument {
                what: "the byte order of the virtio_net_hdr",
                got: u64::from(other),
            });
        }
    };
    Ok(Framing::new(format, order, layer))
}

impl ParsedPolicy {
    /// Reads the caller's policy.
    ///
    /// # Safety
    /// As [`sized`].
    pub(crate) unsafe fn read(given: *const sp_policy) -> Result<Self, Failure> {
        // SAFETY: as the caller promises; the structure consists of integers.
        let given = unsafe { sized("sp_policy", given, size_of::<sp_policy>()) }?;
        let usual = match given.mode {
            SP_MODE_GRO => Policy::gro(),
            SP_MODE_GRO_UDP => Policy::gro_with_udp(),
            SP_MODE_LRO => Policy::lro(),
            SP_MODE_LRO_ACKS => Policy::lro_with_acks(),
            other => return Err(Failure::Argument { what: "policy.mode", got: u64::from(other) }),
        };
        if given.flags & !FLAGS != 0 {
            return Err(Failure::Argument { what: "policy.flags", got: u64::from(given.flags) });
        }
        let layer = layer(given.layer)?;
        let framing = match given.virtio_length {
            0 => None,
            length => Some(framing(length, given.virtio_order, layer)?),
        };
        if framing.is_some() && matches!(usual.mode, Mode::Lro { .. }) {
            // LRO's merged packets have no segments, so no header can describe them.
            return Err(Failure::Argument {
                what: "policy.virtio_length in LRO",
                got: u64::from(given.virtio_length),
            });
        }
        let or = |value: u32, usual: u32| if value == 0 { usual } else { value };
        let mut policy = usual
            .with_max_bytes(or(given.max_bytes, usual.max_bytes))
            .with_max_packets(or(given.max_packets, usual.max_packets))
            .with_max_datagrams(or(given.max_datagrams, usual.max_datagrams))
            .with_max_fragments(or(given.max_fragments, SP_DEFAULT_FRAGMENTS))
            .with_max_flows(or(given.max_flows, usual.max_flows))
            .with_max_held_bytes(if given.max_held_bytes == 0 {
                usual.max_held_bytes
            } else {
                given.max_held_bytes
            })
            .with_hold_time(given.hold_time);
        if given.flags & SP_POLICY_TRUSTED_INPUT != 0 {
            policy = policy.with_trusted_input();
        }
        if given.flags & SP_POLICY_PARTIAL_CHECKSUMS != 0 {
            policy = policy.with_partial_checksums();
        }
        let key = match given.flags & SP_POLICY_FIXED_KEY {
            0 => HashKey::random(),
            _ => HashKey::new(u128::from(given.key[1]) << 64 | u128::from(given.key[0])),
        };
        Ok(ParsedPolicy { policy, layer, framing, key })
    }

    /// Returns the maximum number of buffer ranges of an output packet, including ranges of
    /// headers.
    pub(crate) fn most_ranges(&self) -> usize {
        (self.policy.max_fragments as usize).max(crate::packet::SP_MAX_BUFFERS) + 2
    }
}
