//! Tests that the library allocates memory only when an object is created, while an aggregator's
//! tables grow, and once for names. All other calls do not use the heap, not even those that fail.

use std::ffi::{CStr, c_void};
use std::{mem, ptr};

use superpacket_c::sp_status::*;
use superpacket_c::*;
use superpacket_traffic::workload::{self, TRAIN};

use crate::allocations::{allocations, live_bytes};

#[path = "../../superpacket/tests/engine/support/allocations.rs"]
mod allocations;

/// Number of packets per call, as in one poll of a driver.
const BATCH: usize = 64;
/// Number of observed calls.
const CALLS: usize = 100;

fn nothing<T>() -> T {
    // SAFETY: used for structures of integers and raw pointers only, of which zeros are values.
    unsafe { mem::zeroed() }
}

/// Asserts that a call succeeded.
#[track_caller]
fn ok(status: sp_status) {
    assert_eq!(status, SP_OK);
}

/// Asserts that a call failed with this status.
#[track_caller]
fn fails(status: sp_status, expected: sp_status) {
    assert_eq!(status, expected);
}

/// Runs calls that must not use the heap, and returns their result.
#[track_caller]
fn untouched<T>(calls: impl FnOnce() -> T) -> T {
    let before = (allocations(), live_bytes());
    let result = calls();
    assert_eq!(
        (allocations(), live_bytes()),
        before,
        "the heap was asked for memory, or got some back"
    );
    result
}

/// Frames as C structures, each in one buffer or in three.
struct Given<'a> {
    _frames: &'a [Vec<u8>],
    _rest: Vec<[sp_iovec; 2]>,
    packets: Vec<sp_packet>,
}

impl<'a> Given<'a> {
    fn new(frames: &'a [Vec<u8>], buffers: usize) -> Self {
        let range = |bytes: &[u8]| sp_iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let parts = |frame: &Vec<u8>| {
            let (first, rest) =
                frame.split_at(if buffers == 1 { frame.len() } else { frame.len() / 3 });
            let (second, third) = rest.split_at(rest.len() / 2);
            (range(first), [range(second), range(third)])
        };
        let (firsts, rest): (Vec<_>, Vec<_>) = frames.iter().map(parts).unzip();
        let packet = |(number, first): (usize, sp_iovec)| sp_packet {
            data: first.iov_base,
            length: first.iov_len,
            rest: if buffers == 1 { ptr::null() } else { rest[number].as_ptr() },
            rest_count: if buffers == 1 { 0 } else { 2 },
            token: ptr::without_provenance_mut(number + 1),
            ..nothing()
        };
        let packets = firsts.into_iter().enumerate().map(packet).collect();
        Given { _frames: frames, _rest: rest, packets }
    }
}

/// Memory for outputs.
struct Arrays {
    outputs: Vec<sp_output>,
    _iov: Vec<sp_iovec>,
    _tokens: Vec<*mut c_void>,
    _headers: Vec<u8>,
    space: sp_space,
}

impl Arrays {
    fn new(most: usize) -> Self {
        let (mut outputs, mut iov) = (vec![nothing(); most], vec![nothing(); 4096]);
        let (mut tokens, mut headers) =
            (vec![ptr::null_mut(); iov.len()], vec![0; most * SP_MAX_HEADER]);
        let space = sp_space {
            size: size_of::<sp_space>(),
            outputs: outputs.as_mut_ptr(),
            outputs_max: outputs.len(),
            iov: iov.as_mut_ptr(),
            iov_max: iov.len(),
            tokens: tokens.as_mut_ptr(),
            headers: headers.as_mut_ptr(),
            headers_max: headers.len(),
            ..nothing()
        };
        Arrays { outputs, _iov: iov, _tokens: tokens, _headers: headers, space }
    }
}

fn policy(mode: u32) -> sp_policy {
    sp_policy { size: size_of::<sp_policy>(), mode, flags: SP_POLICY_FIXED_KEY, ..nothing() }
}

fn new_batch(policy: &sp_policy) -> *mut sp_batch {
    let mut batch = ptr::null_mut();
    // SAFETY: both are ours.
    ok(unsafe { sp_batch_new(policy, &mut batch) });
    batch
}

/// Returns the counter of an aggregator with this name.
fn counter(name: &CStr, values: &[u64]) -> u64 {
    // SAFETY: what is not NULL is a string.
    let is = |index: &usize| unsafe { CStr::from_ptr(sp_counter_name(*index)) } == name;
    values[(0..values.len()).find(is).expect("a counter has this name")]
}

/// Aggregates batch by batch. After `warm` calls, in which tables may grow, calls must not use the
/// heap. Returns the number of merged packets and of absorbed ACKs.
#[track_caller]
fn batches(
    policy: &sp_policy,
    frames: &[Vec<u8>],
    buffers: usize,
    most_outputs: usize,
    warm: usize,
) -> (u64, u64) {
    let given = Given::new(frames, buffers);
    let mut arrays = Arrays::new(most_outputs);
    let batch = new_batch(policy);
    let mut values = [0; 64];
    for (number, packets) in given.packets.chunks(BATCH).enumerate() {
        let mut call = || {
            // SAFETY: all that is given is ours, and as long as is said.
            unsafe {
                let mut status =
                    sp_batch_aggregate(batch, packets.as_ptr(), packets.len(), &mut arrays.space);
                while status == SP_FULL {
                    status = sp_batch_continue(
                        batch,
                        packets.as_ptr(),
                        packets.len(),
                        &mut arrays.space,
                    );
                }
                assert_eq!(status, SP_OK);
                ok(sp_batch_reasons(batch, values.as_mut_ptr(), values.len()));
                ok(sp_batch_counters(batch, values.as_mut_ptr(), values.len()));
            }
        };
        if number < warm { call() } else { untouched(call) }
    }
    // SAFETY: made above.
    unsafe { sp_batch_free(batch) };
    (counter(c"merged", &values), counter(c"absorbed_acks", &values))
}

#[test]
fn what_an_object_takes_is_counted_and_given_back() {
    let before = (allocations(), live_bytes());
    let batch = new_batch(&policy(SP_MODE_GRO));
    assert!(allocations() > before.0 && live_bytes() > before.1);
    // SAFETY: made above.
    unsafe { sp_batch_free(batch) };
    assert_eq!(live_bytes(), before.1);
}

#[test]
fn batches_of_segments() {
    // The last segment of a train, alone with PSH, passes unmerged.
    let frames = workload::w1(BATCH * (CALLS + TRAIN));
    for (virtio_length, buffers, most_outputs) in [(0, 1, 64), (12, 1, 64), (0, 3, 64), (12, 3, 1)]
    {
        let (merged, _) = batches(
            &sp_policy { virtio_length, ..policy(SP_MODE_GRO) },
            &frames,
            buffers,
            most_outputs,
            TRAIN,
        );
        assert!(merged > (BATCH * CALLS / 2) as u64, "{merged} merged");
    }
}

#[test]
fn batches_of_many_flows() {
    let (merged, _) =
        batches(&policy(SP_MODE_GRO), &workload::w2(16, BATCH * (CALLS + TRAIN)), 1, 7, TRAIN);
    assert!(merged > (BATCH * CALLS / 2) as u64, "{merged} merged");
}

#[test]
fn batches_of_datagrams_and_acks() {
    let (merged, _) =
        batches(&policy(SP_MODE_GRO_UDP), &workload::w5(BATCH * (CALLS + 1)), 1, 64, 1);
    assert!(merged > (BATCH * CALLS / 2) as u64, "{merged} merged");
    let (_, absorbed) =
        batches(&policy(SP_MODE_LRO_ACKS), &workload::w3(BATCH * (CALLS + 1)), 1, 64, 1);
    assert!(absorbed > (BATCH * CALLS / 2) as u64, "{absorbed} absorbed");
}

#[test]
fn batches_that_are_abandoned_or_refused() {
    let frames = workload::w2(16, BATCH);
    let given = Given::new(&frames, 1);
    let (mut arrays, batch) = (Arrays::new(1), new_batch(&policy(SP_MODE_GRO)));
    let (packets, count) = (given.packets.as_ptr(), given.packets.len());
    let mut call = || {
        // SAFETY: all that is given is ours, and as long as is said, or NULL.
        unsafe {
            fails(sp_batch_aggregate(batch, packets, count, &mut arrays.space), SP_FULL);
            fails(
                sp_batch_aggregate(batch, packets, count, &mut arrays.space),
                SP_ERROR_UNFINISHED,
            );
            fails(
                sp_batch_continue(batch, packets, count - 1, &mut arrays.space),
                SP_ERROR_OTHER_PACKETS,
            );
            assert!(sp_batch_abandon(batch) > 0);
            fails(sp_batch_aggregate(batch, ptr::null(), count, &mut arrays.space), SP_ERROR_NULL);
            fails(
                sp_batch_aggregate(batch, packets, usize::MAX, &mut arrays.space),
                SP_ERROR_LENGTH,
            );
        }
    };
    call();
    (0..CALLS).for_each(|_| untouched(&mut call));
    // SAFETY: made above.
    unsafe { sp_batch_free(batch) };
}

#[test]
fn packets_that_are_held() {
    let frames = workload::w2(16, BATCH * (CALLS + TRAIN));
    let given = Given::new(&frames, 1);
    let (mut arrays, mut aggregator) = (Arrays::new(5), ptr::null_mut());
    // SAFETY: both are ours.
    let status = unsafe {
        sp_aggregator_new(&sp_policy { hold_time: 150, ..policy(SP_MODE_GRO) }, &mut aggregator)
    };
    assert_eq!(status, SP_OK);
    let (mut values, mut tokens, mut done, mut waited) = ([0; 64], [ptr::null_mut(); 7], 0, 0);
    for (number, packets) in given.packets.chunks(BATCH).enumerate() {
        let now = number as u64 * 100;
        let mut call = || {
            // SAFETY: all that is given is ours, and as long as is said; the packets stay.
            unsafe {
                let mut status = sp_aggregator_receive(
                    aggregator,
                    packets.as_ptr(),
                    packets.len(),
                    now,
                    &mut arrays.space,
                );
                while status == SP_FULL {
                    status = sp_aggregator_receive(
                        aggregator,
                        packets.as_ptr(),
                        0,
                        now,
                        &mut arrays.space,
                    );
                }
                assert_eq!(status, SP_OK);
                while status == SP_OK
                    && sp_aggregator_poll_end(aggregator, now, &mut arrays.space) == SP_FULL
                {
                }
                let mut time = 0;
                waited += usize::from(sp_aggregator_deadline(aggregator, &mut time) == SP_OK);
                if number % 8 == 7 {
                    while sp_aggregator_flush(aggregator, &mut arrays.space) == SP_FULL {}
                }
                let (mut given_back, mut status) = (0, SP_FULL);
                while status == SP_FULL {
                    status = sp_aggregator_done(
                        aggregator,
                        tokens.as_mut_ptr(),
                        tokens.len(),
                        &mut given_back,
                    );
                    done += given_back;
                }
                assert_eq!(status, SP_OK);
                ok(sp_aggregator_reasons(aggregator, values.as_mut_ptr(), values.len()));
                ok(sp_aggregator_counters(aggregator, values.as_mut_ptr(), values.len()));
            }
        };
        if number < TRAIN { call() } else { untouched(call) }
    }
    let merged = counter(c"merged", &values);
    assert!(merged > (BATCH * CALLS / 2) as u64, "{merged} merged");
    assert!(
        done > BATCH * CALLS / 2 && waited > CALLS / 2,
        "{done} tokens, held after {waited} polls"
    );
    // SAFETY: made above.
    unsafe { sp_aggregator_free(aggregator) };
}

/// Returns a super-packet in one buffer behind its virtio_net_hdr of 12 bytes, as a device delivers
/// it.
fn read() -> Vec<u8> {
    let frames = workload::w1(TRAIN - 1);
    let given = Given::new(&frames, 1);
    let (mut arrays, batch) =
        (Arrays::new(64), new_batch(&sp_policy { virtio_length: 12, ..policy(SP_MODE_GRO) }));
    let mut read = vec![];
    // SAFETY: all that is given is ours, and as long as is said; ranges lie in it.
    unsafe {
        ok(sp_batch_aggregate(
            batch,
            given.packets.as_ptr(),
            given.packets.len(),
            &mut arrays.space,
        ));
        let output = arrays.outputs[..arrays.space.outputs_used]
            .iter()
            .max_by_key(|output| output.packets)
            .expect("some leave");
        assert!(output.packets > 20, "{} packets merged", output.packets);
        for range in std::slice::from_raw_parts(output.iov, output.iov_count as usize) {
            read.extend_from_slice(std::slice::from_raw_parts(
                range.iov_base.cast(),
                range.iov_len,
            ));
        }
        sp_batch_free(batch);
    }
    read
}

/// Splits the data of a read into buffers, into one buffer, and once with half of it missing.
///
/// # Safety
/// The segmenter is valid, `lengths` has room for all buffers, and `linear` has `size` bytes.
unsafe fn split(
    segmenter: *mut sp_segmenter,
    read: &[u8],
    buffers: &[sp_iovec],
    lengths: *mut usize,
    linear: *mut c_void,
    size: usize,
) {
    let mut plan: sp_plan = nothing();
    let (order, layer) = (SP_ORDER_NATIVE, SP_LAYER_ETHERNET);
    let (bytes, length) = (read.as_ptr().cast::<c_void>(), read.len());
    let (each, count) = (buffers.as_ptr(), buffers.len());
    // SAFETY: as the caller promises.
    unsafe {
        let status = sp_split_each(
            segmenter, 12, order, layer, bytes, length, each, count, 10, lengths, &mut plan,
        );
        assert_eq!(status, SP_OK);
        let mut split = |length| {
            sp_split_linear(segmenter, 12, order, layer, bytes, length, linear, size, &mut plan)
        };
        ok(split(length));
        fails(split(length / 2), SP_ERROR_TRUNCATED);
    }
}

#[test]
fn segments_from_the_first_call_on() {
    let read = read();
    let (mut arrays, mut segmenter) = (Arrays::new(64), ptr::null_mut());
    // SAFETY: the place is ours.
    ok(unsafe { sp_segmenter_new(&mut segmenter) });
    let mut memory = vec![0u8; 2 * read.len()];
    let mut linear = vec![0u8; 2 * read.len()];
    let part = memory.len() / 64;
    let buffers: Vec<_> = memory
        .chunks_mut(part)
        .map(|part| sp_iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
        .collect();
    let mut lengths = vec![0; buffers.len()];
    let mut header_memory = vec![0u8; 64 * SP_MAX_HEADER];
    let places: Vec<*mut c_void> =
        header_memory.chunks_mut(SP_MAX_HEADER).map(|place| place.as_mut_ptr().cast()).collect();
    let options = sp_segment_options { size: size_of::<sp_segment_options>(), ..nothing() };
    let refused = sp_segment_options { max_segments: 2, ..options };
    let mut call = || {
        let (mut plan, mut values): (sp_plan, [u64; 64]) = nothing();
        let (bytes, length) = (read.as_ptr().cast::<c_void>(), read.len());
        let (each, count, lengths) = (buffers.as_ptr(), buffers.len(), lengths.as_mut_ptr());
        let (linear, size) = (linear.as_mut_ptr().cast::<c_void>(), linear.len());
        let mut packet: sp_packet = nothing();
        // SAFETY: all that is given is ours, and as long as is said.
        unsafe {
            ok(sp_virtio_read(12, SP_ORDER_NATIVE, SP_LAYER_ETHERNET, bytes, length, &mut packet));
            ok(sp_segment_plan(segmenter, &packet, &options, &mut plan));
            assert!(plan.segments > 20);
            ok(sp_segment(segmenter, &packet, &options, &mut arrays.space));
            assert_eq!(arrays.space.outputs_used, plan.segments);
            fails(
                sp_segment(segmenter, &packet, &refused, &mut arrays.space),
                SP_ERROR_TOO_MANY_SEGMENTS,
            );
            let mut headers: sp_headers = nothing();
            ok(sp_segment_headers(segmenter, &packet, &options, places.as_ptr(), 64, &mut headers));
            assert_eq!((headers.plan, headers.header_length), (plan, headers.payload_start));
            fails(
                sp_segment_headers(segmenter, &packet, &options, places.as_ptr(), 2, &mut headers),
                SP_ERROR_SPACE,
            );
            ok(sp_segment_each(segmenter, &packet, &options, each, count, 10, lengths, &mut plan));
            fails(
                sp_segment_each(segmenter, &packet, &options, each, 2, 10, lengths, &mut plan),
                SP_ERROR_TOO_MANY_SEGMENTS,
            );
            ok(sp_segment_linear(segmenter, &packet, &options, linear, size, &mut plan));
            fails(
                sp_segment_linear(segmenter, &packet, &options, linear, 2000, &mut plan),
                SP_ERROR_SPACE,
            );
            split(segmenter, &read, &buffers, lengths, linear, size);
            packet.offload.gso_type = SP_GSO_NONE;
            ok(sp_gso_for_mtu(&mut packet, SP_LAYER_ETHERNET, 1500));
            assert_eq!(packet.offload.gso_type, SP_GSO_TCP4);
            ok(sp_segmenter_counters(segmenter, values.as_mut_ptr(), values.len()));
        }
    };
    (0..CALLS).for_each(|_| untouched(&mut call));
    // SAFETY: made above.
    unsafe { sp_segmenter_free(segmenter) };
}

#[test]
fn checksums_hashes_headers_and_messages_from_the_first_call_on() {
    // Names are made when one is first asked for, once in a process.
    let _ = (sp_counter_name(0), sp_reason_name(0), sp_segment_counter_name(0));
    let frame = workload::w1(1).remove(0);
    let read = read();
    let (mut copy, mut toeplitz) = (vec![0u8; read.len()], ptr::null_mut());
    // SAFETY: the place is ours; no key is given.
    ok(unsafe { sp_toeplitz_new(ptr::null(), 0, 0, &mut toeplitz) });
    let mut call = || {
        let mut packet =
            sp_packet { data: frame.as_ptr().cast(), length: frame.len(), ..nothing() };
        let (mut sum, mut sum_of_copy, mut hash, mut header, mut text) =
            (0, 0, 0, [0u8; 12], [0; 200]);
        let (bytes, length, to) =
            (read.as_ptr().cast::<c_void>(), read.len(), copy.as_mut_ptr().cast::<c_void>());
        // SAFETY: all that is given is ours, and as long as is said.
        unsafe {
            ok(sp_checksum_verify(&packet, SP_LAYER_ETHERNET));
            ok(sp_toeplitz_packet(toeplitz, &packet, SP_LAYER_ETHERNET, &mut hash));
            ok(sp_toeplitz_bytes(toeplitz, bytes, 12, &mut hash));
            ok(sp_checksum_sum(bytes, length, &mut sum));
            ok(sp_checksum_copy(to, bytes, length, &mut sum_of_copy));
            assert_eq!(sum, sum_of_copy);
            ok(sp_virtio_read(12, SP_ORDER_NATIVE, SP_LAYER_ETHERNET, bytes, length, &mut packet));
            let (start, offset) = (packet.offload.checksum_start, packet.offload.checksum_offset);
            ok(sp_virtio_write(
                12,
                SP_ORDER_NATIVE,
                SP_LAYER_ETHERNET,
                &packet,
                header.as_mut_ptr().cast(),
                12,
            ));
            assert_eq!(header, read[..12]);
            ok(sp_checksum_complete(
                to.byte_add(12),
                length - 12,
                SP_LAYER_ETHERNET,
                start,
                offset,
            ));
            let failed =
                sp_checksum_complete(to.byte_add(12), 20, SP_LAYER_ETHERNET, start, offset);
            assert!((failed as i32) < 0);
            assert!(sp_message(text.as_mut_ptr(), text.len()) > 0);
            assert!(
                !sp_strerror(failed as i32).is_null()
                    && !sp_errname(failed as i32).is_null()
                    && !sp_version().is_null()
            );
            assert!(
                !sp_counter_name(0).is_null()
                    && !sp_reason_name(0).is_null()
                    && !sp_segment_counter_name(0).is_null()
            );
        }
    };
    (0..CALLS).for_each(|_| untouched(&mut call));
    // SAFETY: made above.
    unsafe { sp_toeplitz_free(toeplitz) };
}
