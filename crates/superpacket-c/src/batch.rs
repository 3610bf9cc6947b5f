//! Aggregation of packets that are borrowed for a call.

#![expect(unsafe_code, reason = "the border to C")]

use std::ptr;

use superpacket::aggregate::{Borrowed, BufferIndex};
use superpacket::{BatchAggregator, Framing, SuperPacket};

use crate::object::{Object, new, with};
use crate::offload::sp_offload;
use crate::packet::{Packet, SP_MAX_BUFFERS, sp_packet};
use crate::policy::{Chosen, sp_policy};
use crate::received::{Given, Packets};
use crate::space::{Full, Known, Space, sp_space};
use crate::status::sp_status::{self, SP_FULL, SP_OK};
use crate::status::{Failure, guard};

/// Aggregates the packets of one call, which are borrowed for it: nothing is held between calls,
/// but for one that returned SP_FULL.
///
/// One thread at a time may use it, not always the same. Its tables grow to what the traffic needs,
/// and stay: after that, calls allocate nothing.
pub struct sp_batch {
    pub(crate) object: Object<BatchAggregator>,
    framing: Option<Framing>,
    most_ranges: usize,
    /// Which packets a call left that returned SP_FULL. The pointer is only compared.
    unfinished: Option<(*const sp_packet, usize)>,
}

/// Makes an aggregator of batches.
///
/// \param policy how to aggregate; read during the call.
/// \param out where the new object goes; set to NULL on an error. Give it to sp_batch_free.
/// \return SP_OK; SP_ERROR_NULL; SP_ERROR_STRUCTURE, SP_ERROR_ARGUMENT if the policy has a size or
/// a value that is not allowed; SP_ERROR_INTERNAL if the system gives no random numbers.
/// \note Any thread may call it at any time. Ends the process if memory cannot be had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_new(
    policy: *const sp_policy,
    out: *mut *mut sp_batch,
) -> sp_status {
    guard(|| {
        // SAFETY: `out` is NULL or the caller's place for a pointer, `policy` NULL or a structure
        // that begins with its size.
        unsafe {
            new(out, || {
                let chosen = Chosen::read(policy)?;
                let most_ranges = chosen.most_ranges();
                let Chosen { policy, layer, framing, key } = chosen;
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

/// Frees an aggregator of batches. Packets of an unfinished call are forgotten: they are the
/// caller's.
///
/// \param batch NULL does nothing. No call may be under way in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_free(batch: *mut sp_batch) {
    // SAFETY: NULL, or made by `sp_batch_new` and not freed yet, and nobody else's.
    unsafe { crate::object::free(batch) };
}

/// Aggregates packets, in order, and puts all that leaves into the space.
///
/// An output's ranges lie in the packets' own buffers, but for its headers, which lie in the
/// space's header memory. A packet that merged with no other leaves as it came. When the call
/// returns SP_OK every packet is in exactly one output, or, in SP_MODE_LRO_ACKS, an ACK may have
/// been absorbed by one.
///
/// On SP_FULL, use the outputs that are there; then call sp_batch_continue. No packet is lost.
///
/// \param batch the aggregator.
/// \param packets an array, and the buffers that its packets point to: the caller's, unchanged
/// until this call, or the sp_batch_continue after it that returns SP_OK, has returned. The library
/// keeps no pointer to them beyond that.
/// \param count how many: at most SP_MAX_PACKETS. 0 does nothing.
/// \param space filled from its start.
/// \return SP_OK; SP_FULL; SP_ERROR_UNFINISHED if an earlier call returned SP_FULL and has been
/// neither continued nor abandoned; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT,
/// SP_ERROR_STRUCTURE for what is given; SP_ERROR_SPACE if the space could not take even one
/// output; SP_ERROR_INTERNAL. On an error no packet has been looked at, and the space's _used
/// fields are 0.
/// \note One thread at a time for each sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_aggregate(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: as the comment demands of the caller.
    unsafe { call(batch, packets, count, space, false) }
}

/// Goes on with a call of sp_batch_aggregate that returned SP_FULL: the space is filled from its
/// start again, with what comes next.
///
/// \param batch the aggregator.
/// \param packets the very array of that call.
/// \param count as in that call.
/// \param space any; it need not be the same.
/// \return as sp_batch_aggregate; SP_FULL once more if there is still more; SP_ERROR_OTHER_PACKETS
/// if there is no such call, or its packets were others.
/// \note One thread at a time for each sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_continue(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: as the comment demands of the caller.
    unsafe { call(batch, packets, count, space, true) }
}

/// Gives up a call that returned SP_FULL: what it has not put out is forgotten. The packets are the
/// caller's to send as they are, or to drop.
///
/// \param batch the aggregator.
/// \return how many outputs it would have been at least; 0 if there was no such call, or for NULL.
/// \note One thread at a time for each sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_abandon(batch: *mut sp_batch) -> usize {
    let mut given_up = 0;
    let _ = guard(|| {
        // SAFETY: NULL, or made by `sp_batch_new`, and nobody else's during the call.
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
/// As [`sp_batch_aggregate`] demands.
#[inline(always)]
unsafe fn call(
    batch: *mut sp_batch,
    packets: *const sp_packet,
    count: usize,
    space: *mut sp_space,
    goes_on: bool,
) -> sp_status {
    guard(|| {
        // SAFETY: NULL or the caller's.
        unsafe { Space::empty(space) };
        // SAFETY: `batch` is NULL, or made by `sp_batch_new` and nobody else's during the call.
        unsafe {
            with("batch", batch, |batch| {
                let sp_batch { object, framing, most_ranges, unfinished } = batch;
                object.call(|aggregator| {
                    match (*unfinished, goes_on) {
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
                    let (checked, kind) = Packet::check_all(packets, count, SP_MAX_BUFFERS)?;
                    // SAFETY: the caller's memory, apart from the packets.
                    Space::with(space, *most_ranges, |space| {
                        let full = match Packets::of(checked, kind) {
                            // What is known of the packets has been noted: only their bytes are
                            // asked for.
                            _ if goes_on => aggregator
                                .resume(checked, |packet| put(space, packet, checked, *framing)),
                            Packets::Unknown(packets) => take(aggregator, packets, space, *framing),
                            Packets::Verified(packets) => {
                                take(aggregator, packets, space, *framing)
                            }
                            Packets::Any(packets) => take(aggregator, packets, space, *framing),
                        };
                        *unfinished = full.is_err().then_some((packets, count));
                        Ok(if full.is_err() { SP_FULL } else { SP_OK })
                    })
                })
            })
        }
    })
}

/// Gives packets to the aggregator, and puts what leaves into the space.
fn take<P: Given>(
    aggregator: &mut BatchAggregator,
    packets: &[P],
    space: &mut Space<'_>,
    framing: Option<Framing>,
) -> Result<(), Full> {
    aggregator.poll_without_sums(
        packets,
        |packet: SuperPacket<'_, BufferIndex, Borrowed<'_, P>>| {
            put(space, packet, packets, framing)
        },
    )
}

/// Puts what leaves into the space; nothing of it, if not all fits.
#[inline(always)]
fn put<P: Given>(
    space: &mut Space<'_>,
    packet: SuperPacket<'_, BufferIndex, Borrowed<'_, P>>,
    packets: &[P],
    framing: Option<Framing>,
) -> Result<(), Full> {
    let header_length = framing.map_or(0, Framing::header_length);
    let header = packet.header();
    // One range for both headers.
    space.room(packet.pieces().len() + 1, header_length + header.len())?;
    // What no header can describe did not merge, and goes with one that says nothing.
    let described = framing.map(|framing| framing.header(&packet));
    let described: &[u8] = match &described {
        Some(Ok(bytes)) => bytes,
        Some(Err(_)) => &[0; 24][..header_length],
        None => &[],
    };
    let mut begun = space.begin([described, header])?;
    let pieces = packet.pieces();
    // Buffers are kept: every piece lies in one.
    let owner = |index: &BufferIndex| packets.get(index.packet());
    let token = pieces
        .first()
        .and_then(|piece| owner(piece.buffer()?))
        .map_or(ptr::null_mut(), Given::token);
    let ranges = pieces.iter().filter(|piece| piece.length() != 0).filter_map(|piece| {
        let index = piece.buffer()?;
        let owner = owner(index)?;
        let range =
            owner.buffer(index.buffer()).get(piece.start()..piece.start() + piece.length())?;
        Some((range.as_ptr().cast(), range.len(), owner.token()))
    });
    space.records.extend(&mut begun, pieces.len(), ranges)?;
    if begun.is_empty(&space.records) {
        // A packet without a byte: it leaves as one range of none.
        space.records.push(&mut begun, ptr::null(), 0, token)?;
    }
    begun.token = token;
    let metadata = &packet.metadata;
    let offload = sp_offload::new(metadata.checksum, metadata.gso, metadata.hash, metadata.vlan);
    space.records.end(begun, metadata.packets, offload, Known::of(metadata))
}
