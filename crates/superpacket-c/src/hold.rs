//! Aggregation of packets that are held across calls.

#![expect(unsafe_code, reason = "the border to C")]

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem;
use std::ptr;

use superpacket::{Aggregator, Layer, RxPacket, SuperPacket};

use crate::memory::{bytes, memory, place};
use crate::object::{Object, free, new, with, with_ref};
use crate::offload::sp_offload;
use crate::packet::{CheckedPacket, SP_MAX_BUFFERS, sp_packet};
use crate::policy::{ParsedPolicy, sp_policy};
use crate::space::{Full, OutputMetadata, Space, sp_space};
use crate::status::sp_status::{self, SP_FULL, SP_NONE, SP_OK};
use crate::status::{Failure, guard};

/// An aggregator for the packets of one receive queue. It may hold packets across calls.
///
/// Different threads may use it, but only one at a time. Its tables grow as the traffic needs and
/// keep their size; after that, calls allocate no memory.
pub struct sp_aggregator {
    pub(crate) object: Object<Aggregator<HeldBuffer>>,
    layer: Layer,
    most_ranges: usize,
    /// Packets that were passed to [`sp_aggregator_receive`] and are not processed yet.
    packets: Vec<RxPacket<HeldBuffer>>,
    /// Tokens of packets whose buffers are no longer needed.
    done: Vec<*mut c_void>,
}

/// A caller's buffer that the aggregator holds. When it is dropped, the caller gets his token back.
///
/// Invariant: made by [`sp_aggregator_receive`], whose caller leaves the bytes unchanged until he
/// has the token back.
pub(crate) struct HeldBuffer {
    data: *const c_void,
    length: usize,
    token: *mut c_void,
}

impl AsRef<[u8]> for HeldBuffer {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: invariant of the type: they can be read, and are not written, while it lives. The
        // length has been checked.
        unsafe { bytes(self.data, self.length) }
    }
}

thread_local! {
    /// Tokens of the buffers that were dropped in the current call on this thread.
    static DROPPED: RefCell<Vec<*mut c_void>> = const { RefCell::new(Vec::new()) };
}

impl Drop for HeldBuffer {
    #[inline]
    fn drop(&mut self) {
        let _ = DROPPED.try_with(|dropped| dropped.borrow_mut().push(self.token));
    }
}

/// Collects the tokens of the buffers that are dropped while it lives.
struct TokenCollector<'a>(&'a mut Vec<*mut c_void>);

impl<'a> TokenCollector<'a> {
    fn into(tokens: &'a mut Vec<*mut c_void>) -> Self {
        let mut collect = TokenCollector(tokens);
        collect.swap();
        collect
    }

    fn swap(&mut self) {
        let _ = DROPPED.try_with(|dropped| mem::swap(self.0, &mut dropped.borrow_mut()));
    }
}

impl Drop for TokenCollector<'_> {
    fn drop(&mut self) {
        self.swap();
    }
}

/// Creates an aggregator that may hold packets across calls.
///
/// \param policy how to aggregate; read during the call. virtio_length must be 0; describe the
/// outputs with sp_virtio_write and SP_POLICY_PARTIAL_CHECKSUMS.
/// \param out receives the new object, or NULL on an error. Free it with sp_aggregator_free.
/// \return as sp_batch_new.
/// \note Any thread may call it at any time. Ends the process if there is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_new(
    policy: *const sp_policy,
    out: *mut *mut sp_aggregator,
) -> sp_status {
    guard(|| {
        // SAFETY: `out` is NULL or the caller's memory for a pointer, `policy` NULL or a structure
        // that begins with its size.
        unsafe {
            new(out, || {
                let parsed = ParsedPolicy::read(policy)?;
                if let Some(framing) = parsed.framing {
                    let got = framing.header_length() as u64;
                    return Err(Failure::Argument {
                        what: "policy.virtio_length of an sp_aggregator",
                        got,
                    });
                }
                Ok(sp_aggregator {
                    most_ranges: parsed.most_ranges(),
                    layer: parsed.layer,
                    object: Object::new(Aggregator::new(parsed.policy, parsed.key)),
                    packets: Vec::new(),
                    done: Vec::new(),
                })
            })
        }
    })
}

/// Frees an aggregator. The packets that it held belong to the caller again.
///
/// \param aggregator the aggregator; NULL does nothing. No call may be running in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_free(aggregator: *mut sp_aggregator) {
    let mut tokens = Vec::new();
    let collect = TokenCollector::into(&mut tokens);
    // SAFETY: NULL, or made by `sp_aggregator_new`, not freed yet, and not in use.
    unsafe { free(aggregator) };
    drop(collect);
}

/// Receives packets, in order. The packets that leave the aggregator are written to the outputs of
/// the sp_space. The others are held until sp_aggregator_poll_end or a later packet of their flow.
///
/// The bytes of each packet must not change until sp_aggregator_done returns its token. The array
/// itself is not kept.
///
/// On SP_FULL, use the outputs, and then call the function again, with more packets or with none
/// (count 0). The aggregator has all packets, and continues where it stopped.
///
/// \param aggregator the aggregator.
/// \param packets an array of packets with one buffer each: rest_count must be 0.
/// \param count number of packets; at most SP_MAX_PACKETS.
/// \param now the time in nanoseconds, of any clock, from which the policy's hold_time counts.
/// \param space filled from its start.
/// \return SP_OK; SP_FULL; or an error of sp_batch_aggregate, in which case no packet was received.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_receive(
    aggregator: *mut sp_aggregator,
    packets: *const sp_packet,
    count: usize,
    now: u64,
    space: *mut sp_space,
) -> sp_status {
    let take = |taken: &mut Vec<RxPacket<HeldBuffer>>, layer| {
        // SAFETY: the caller's packets, unchanged for as long as they are held.
        let (checked, _) = unsafe { CheckedPacket::check_all(packets, count, SP_MAX_BUFFERS) }?;
        if let Some(packet) = checked.iter().find(|packet| packet.count() != 1) {
            return Err(Failure::Argument {
                what: "packet.rest_count of a packet to be held",
                got: packet.count() as u64 - 1,
            });
        }
        taken.extend(checked.iter().map(|packet| {
            let bytes = packet.first();
            packet.received_with(
                layer,
                HeldBuffer {
                    data: bytes.as_ptr().cast(),
                    length: bytes.len(),
                    token: packet.token(),
                },
            )
        }));
        Ok(())
    };
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(aggregator, space, take, |aggregator, packets, space| {
            receive(aggregator, packets, now, space)
        })
    }
}

/// Receives packets, and writes the packets that leave the aggregator to the caller's [`Space`].
/// All functions of this file that receive packets use this one, so that the engine is compiled
/// only once for this kind of output.
fn receive(
    aggregator: &mut Aggregator<HeldBuffer>,
    packets: &mut Vec<RxPacket<HeldBuffer>>,
    now: u64,
    space: &mut Space<'_>,
) -> Result<(), Full> {
    aggregator.receive_batch(packets, now, &mut |packet: SuperPacket<'_, HeldBuffer>| {
        write_output(space, packet)
    })
}

/// Ends a poll: puts out all held flows or, with a hold_time, those held at least that long.
///
/// \param aggregator the aggregator.
/// \param now the time, as for sp_aggregator_receive.
/// \param space filled from its start.
/// \return SP_OK; SP_FULL: use the outputs, then call again; or an error of sp_batch_aggregate.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_poll_end(
    aggregator: *mut sp_aggregator,
    now: u64,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(
            aggregator,
            space,
            |_, _| Ok(()),
            |aggregator, packets, space| {
                receive(aggregator, packets, now, space)?;
                aggregator.poll_end(now, &mut |packet: SuperPacket<'_, HeldBuffer>| {
                    write_output(space, packet)
                })
            },
        )
    }
}

/// Puts out all held packets, regardless of the hold_time.
///
/// \param aggregator the aggregator.
/// \param space filled from its start.
/// \return SP_OK; SP_FULL: use the outputs, then call again; or an error of sp_batch_aggregate.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_flush(
    aggregator: *mut sp_aggregator,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(
            aggregator,
            space,
            |_, _| Ok(()),
            |aggregator, packets, space| {
                receive(aggregator, packets, 0, space)?;
                aggregator.flush_all(&mut |packet: SuperPacket<'_, HeldBuffer>| {
                    write_output(space, packet)
                })
            },
        )
    }
}

/// Returns the tokens of packets that are no longer needed: their outputs were put out, or they
/// were absorbed. Each token is returned once. Call it after the outputs have been used.
///
/// \param aggregator the aggregator.
/// \param tokens receives the tokens.
/// \param max room in tokens.
/// \param count receives the number of tokens written.
/// \return SP_OK; SP_FULL if there are more; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_done(
    aggregator: *mut sp_aggregator,
    tokens: *mut *mut c_void,
    max: usize,
    count: *mut usize,
) -> sp_status {
    guard(|| {
        // SAFETY: `aggregator` is NULL, or made by `sp_aggregator_new` and not used elsewhere
        // during the call; `tokens` is NULL or the caller's memory for `max` pointers, `count` for
        // a number.
        unsafe {
            with("aggregator", aggregator, |aggregator| {
                let count = place("count", count)?;
                let tokens = memory("tokens", tokens, max)?;
                let number = tokens.len().min(aggregator.done.len());
                for (place, token) in tokens.iter_mut().zip(aggregator.done.drain(..number)) {
                    place.write(token);
                }
                count.write(number);
                Ok(if aggregator.done.is_empty() { SP_OK } else { SP_FULL })
            })
        }
    })
}

/// Returns the time at which the flow that has been held longest reaches the policy's hold_time.
/// Call sp_aggregator_poll_end at that time.
///
/// \param aggregator the aggregator.
/// \param time receives the time, in nanoseconds of the clock given to sp_aggregator_receive.
/// \return SP_OK; SP_NONE if no flow is held, and nothing is written; SP_ERROR_NULL,
/// SP_ERROR_ARGUMENT.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_deadline(
    aggregator: *const sp_aggregator,
    time: *mut u64,
) -> sp_status {
    guard(|| {
        // SAFETY: `aggregator` is NULL, or made by `sp_aggregator_new`; `time` is NULL or the
        // caller's memory for a number.
        unsafe {
            with_ref("aggregator", aggregator, |aggregator| {
                let place = place("time", time)?;
                match aggregator.object.inner().deadline() {
                    Some(deadline) => {
                        place.write(deadline);
                        Ok(SP_OK)
                    }
                    None => Ok(SP_NONE),
                }
            })
        }
    })
}

/// # Safety
/// The requirements of [`sp_aggregator_receive`] for `aggregator` and `space`.
unsafe fn call(
    aggregator: *mut sp_aggregator,
    space: *mut sp_space,
    take: impl FnOnce(&mut Vec<RxPacket<HeldBuffer>>, Layer) -> Result<(), Failure>,
    body: impl FnOnce(
        &mut Aggregator<HeldBuffer>,
        &mut Vec<RxPacket<HeldBuffer>>,
        &mut Space<'_>,
    ) -> Result<(), Full>,
) -> sp_status {
    guard(|| {
        // SAFETY: NULL, or memory as the caller promises.
        unsafe { Space::empty(space) };
        // SAFETY: NULL, or made by `sp_aggregator_new` and not used elsewhere during the call.
        unsafe {
            with("aggregator", aggregator, |aggregator| {
                let sp_aggregator { object, layer, most_ranges, packets, done } = aggregator;
                object.call(|aggregator| {
                    // SAFETY: the caller's memory.
                    Space::with(space, *most_ranges, |space| {
                        take(packets, *layer)?;
                        let _collect = TokenCollector::into(done);
                        Ok(if body(aggregator, packets, space).is_err() { SP_FULL } else { SP_OK })
                    })
                })
            })
        }
    })
}

/// Writes a packet that leaves the aggregator to the caller's [`Space`]; if the packet does not
/// fit, nothing is written.
fn write_output(
    space: &mut Space<'_>,
    mut packet: SuperPacket<'_, HeldBuffer>,
) -> Result<(), Full> {
    let header = packet.header();
    space.room(packet.pieces().len() + 1, header.len())?;
    let mut open = space.begin([header, &[]])?;
    let mut token: *mut c_void = ptr::null_mut();
    let mut first = true;
    for piece in packet.take_pieces() {
        let (start, length) = (piece.start(), piece.length());
        // Buffers are kept, so every piece lies in one. Dropping the buffer returns its token.
        let Some(buffer) = piece.into_buffer() else { continue };
        if first {
            (token, first) = (buffer.token, false);
        }
        let range = buffer.as_ref().get(start..start + length).unwrap_or(&[]);
        if !range.is_empty() {
            space.records.push(&mut open, range.as_ptr().cast(), range.len(), buffer.token)?;
        }
    }
    if open.is_empty(&space.records) {
        space.records.push(&mut open, ptr::null(), 0, token)?;
    }
    open.token = token;
    let metadata = &packet.metadata;
    let offload = sp_offload::new(metadata.checksum, metadata.gso, metadata.hash, metadata.vlan);
    space.records.end(open, metadata.packets, offload, OutputMetadata::of(metadata))
}
