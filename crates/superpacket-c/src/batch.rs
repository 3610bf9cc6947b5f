//! Aggregation of packets that are borrowed for one call.

#![expect(unsafe_code, reason = "the border to C")]

use std::ptr;

use superpacket::aggregate::{Borrowed, BufferIndex};
use superpacket::{BatchAggregator, Framing, SuperPacket};

use crate::object::{Object, new, with};
use crate::offload::sp_offload;
use crate::packet::{CheckedPacket, SP_MAX_BUFFERS, sp_packet};
use crate::policy::{ParsedPolicy, sp_policy};
use crate::received::{ReceivedPackets, TokenPacket};
use crate::space::{Full, OutputMetadata, Space, sp_space};
use crate::status::sp_status::{self, SP_FULL, SP_OK};
use crate::status::{Failure, guard};

/// An aggregator of batches: it borrows the packets of one call, and holds none between calls,
/// except after SP_FULL.
///
/// Different threads may use it, but only one at a time. Its tables grow as the traffic needs and
/// keep their size; after that, calls allocate no memory.
pub struct sp_batch {
    pub(crate) object: Object<BatchAggregator>,
    framing: Option<Framing>,
    most_ranges: usize,
    /// The packets of a call that returned SP_FULL: address of the array and number of packets. The
    /// address is only compared with that of the next call.
    unfinished: Option<(*const sp_packet, usize)>,
}

/// Creates an aggregator of batches.
///
/// \param policy how to aggregate; read during the call.
/// \param out receives the new object, or NULL on an error. Free it with sp_batch_free.
/// \return SP_OK; SP_ERROR_NULL; SP_ERROR_STRUCTURE or SP_ERROR_ARGUMENT if the policy has a size
/// or a value that is not allowed; SP_ERROR_INTERNAL if the system has no random numbers.
/// \note Any thread may call it at any time. Ends the process if there is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_new(
    policy: *const sp_policy,
    out: *mut *mut sp_batch,
) -> sp_status {
    guard(|| {
        // SAFETY: `out` is NULL or the caller's memory for a pointer, `policy` NULL or a structure
        // that begins with its size.
        unsafe {
            new(out, || {
                let parsed = ParsedPolicy::read(policy)?;
                let most_ranges = parsed.most_ranges();
                let ParsedPolicy { policy, layer, framing, key } = parsed;
                let aggregator = match framing {
                    Some(framing) => BatchAggregator::framed(framing, policy, key),
                    None => BatchAggregator::new(layer, policy, key),
                };
                Ok(sp_batch {
                    object: Object::new(aggregator),
                    framing,
                    most_ranges,
                    unfinished: None,
                })
            })
        }
    })
}

/// Frees an aggregator of batches. The packets of an unfinished call belong to the caller again.
///
/// \param batch the aggregator; NULL does nothing. No call may be running in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_free(batch: *mut sp_batch) {
    // SAFETY: NULL, or made by `sp_batch_new`, not freed yet, and not in use.
    unsafe { crate::object::free(batch) };
}

/// Aggregates packets, in order, and writes all packets that result, merged or unchanged, to the
/// outputs of the sp_space.
///
/// An output consists of ranges in the packets' own buffers, except for its headers, which are in
/// the space's header memory. A packet that did not merge leaves unchanged. When the call returns
/// SP_OK, every packet is in exactly one output. In SP_MODE_LRO_ACKS, an ACK may instead have been
/// absorbed by an output.
///
/// On SP_FULL, use the outputs, and then call sp_batch_continue. No packet is lost.
///
/// \param batch the aggregator.
/// \param packets an array. The array and the packets' buffers must not change until this call, or
/// the sp_batch_continue after it that returns SP_OK, has returned. The library keeps no pointer to
/// them after that.
/// \param count number of packets; at most SP_MAX_PACKETS. 0 does nothing.
/// \param space filled from its start.
/// \return SP_OK; SP_FULL; SP_ERROR_UNFINISHED if an earlier call returned SP_FULL and was neither
/// continued nor abandoned; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT or SP_ERROR_STRUCTURE
/// for an invalid argument; SP_ERROR_SPACE if the space has no room for a single output;
/// SP_ERROR_INTERNAL. On an error no packet was processed, and the space's _used fields are 0.
/// \note Only one thread at a time may use an sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_aggregate(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe { call(batch, packets, count, space, false) }
}

/// Continues a call of sp_batch_aggregate that returned SP_FULL. The sp_space is filled from its
/// start again, with the next outputs.
///
/// \param batch the aggregator.
/// \param packets the same array as in the call that returned SP_FULL.
/// \param count the same number as in the call that returned SP_FULL.
/// \param space the same space or another.
/// \return as sp_batch_aggregate; SP_FULL if there are still more outputs; SP_ERROR_OTHER_PACKETS
/// if no call returned SP_FULL, or one with other packets did.
/// \note Only one thread at a time may use an sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_continue(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe { call(batch, packets, count, space, true) }
}

/// Abandons a call that returned SP_FULL. The packets that it has not put out belong to the caller,
/// who may send them unchanged or drop them.
///
/// \param batch the aggregator.
/// \return the minimum number of outputs that were still missing; 0 if no call returned SP_FULL, or
/// for NULL.
/// \note Only one thread at a time may use an sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_abandon(batch: *mut sp_batch) -> usize {
    let mut given_up = 0;
    let _ = guard(|| {
        // SAFETY: NULL, or made by `sp_batch_new` and not used elsewhere during the call.
        unsafe {
            with("batch", batch, |batch| {
                let sp_batch { object, unfinished, .. } = batch;
                object.call(|aggregator| {
                    *unfinished = None;
                    given_up = aggregator.unfinished();
                    let policy = *aggregator.policy();
                    aggregator.set_policy(policy);
                    Ok(SP_OK)
                })
            })
        }
    });
    given_up
}

/// # Safety
/// The requirements of [`sp_batch_aggregate`].
#[inline(always)]
unsafe fn call(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
    continues: bool,
) -> sp_status {
    guard(|| {
        // SAFETY: NULL, or memory as the caller promises.
        unsafe { Space::empty(space) };
        // SAFETY: `batch` is NULL, or made by `sp_batch_new` and not used elsewhere during the
        // call.
        unsafe {
            with("batch", batch, |batch| {
                let sp_batch { object, framing, most_ranges, unfinished } = batch;
                object.call(|aggregator| {
                    match (*unfinished, continues) {
                        (Some(_), false) => {
                            return Err(Failure::Unfinished(aggregator.unfinished()));
                        }
                        (None, true) => return Err(Failure::OtherPackets),
                        (Some(before), true) if before != (packets, count) => {
                            return Err(Failure::OtherPackets);
                        }
                        _ => {}
                    }
                    // SAFETY: the caller's packets, unchanged during the call.
                    let (checked, kind) = CheckedPacket::check_all(packets, count, SP_MAX_BUFFERS)?;
                    // SAFETY: the caller's memory, which does not overlap the packets.
                    Space::with(space, *most_ranges, |space| {
                        let full = match ReceivedPackets::of(checked, kind) {
                            // The packets' metadata has been read already, and only their bytes are
                            // needed.
                            _ if continues => aggregator.resume(checked, |packet| {
                                write_output(space, packet, checked, *framing)
                            }),
                            ReceivedPackets::Unknown(packets) => {
                                aggregate(aggregator, packets, space, *framing)
                            }
                            ReceivedPackets::Verified(packets) => {
                                aggregate(aggregator, packets, space, *framing)
                            }
                            ReceivedPackets::Any(packets) => {
                                aggregate(aggregator, packets, space, *framing)
                            }
                        };
                        *unfinished = full.is_err().then_some((packets, count));
                        Ok(if full.is_err() { SP_FULL } else { SP_OK })
                    })
                })
            })
        }
    })
}

/// Passes packets to the aggregator, and writes the packets that leave it to the caller's
/// [`Space`].
fn aggregate<P: TokenPacket>(
    aggregator: &mut BatchAggregator,
    packets: &[P],
    space: &mut Space<'_>,
    framing: Option<Framing>,
) -> Result<(), Full> {
    aggregator.poll_without_sums(
        packets,
        |packet: SuperPacket<'_, BufferIndex, Borrowed<'_, P>>| {
            write_output(space, packet, packets, framing)
        },
    )
}

/// Writes a packet that leaves the aggregator to the caller's [`Space`]; if the packet does not
/// fit, nothing is written.
#[inline(always)]
fn write_output<P: TokenPacket>(
    space: &mut Space<'_>,
    packet: SuperPacket<'_, BufferIndex, Borrowed<'_, P>>,
    packets: &[P],
    framing: Option<Framing>,
) -> Result<(), Full> {
    let header_length = framing.map_or(0, Framing::header_length);
    let header = packet.header();
    // The virtio_net_hdr and the packet's own headers share one range.
    space.room(packet.pieces().len() + 1, header_length + header.len())?;
    // A packet that no header can describe did not merge, and its header carries no information.
    let described = framing.map(|framing| framing.header(&packet));
    let described: &[u8] = match &described {
        Some(Ok(bytes)) => bytes,
        Some(Err(_)) => &[0; 24][..header_length],
        None => &[],
    };
    let mut open = space.begin([described, header])?;
    let pieces = packet.pieces();
    // Buffers are kept, so every piece lies in one of them.
    let owner = |index: &BufferIndex| packets.get(index.packet());
    let token = pieces
        .first()
        .and_then(|piece| owner(piece.buffer()?))
        .map_or(ptr::null_mut(), TokenPacket::token);
    let ranges = pieces.iter().filter(|piece| piece.length() != 0).filter_map(|piece| {
        let index = piece.buffer()?;
        let owner = owner(index)?;
        let range =
            owner.buffer(index.buffer()).get(piece.start()..piece.start() + piece.length())?;
        Some((range.as_ptr().cast(), range.len(), owner.token()))
    });
    space.records.extend(&mut open, pieces.len(), ranges)?;
    if open.is_empty(&space.records) {
        // A packet without bytes leaves as one empty range.
        space.records.push(&mut open, ptr::null(), 0, token)?;
    }
    open.token = token;
    let metadata = &packet.metadata;
    let offload = sp_offload::new(metadata.checksum, metadata.gso, metadata.hash, metadata.vlan);
    space.records.end(open, metadata.packets, offload, OutputMetadata::of(metadata))
}
