//! Random bytes, lengths and numbers are passed to the C interface. Nothing is written outside the
//! outputs, every range lies in the given buffers, every packet is put out once, and an error
//! leaves no output.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{mem, ptr, slice};

use proptest::prelude::*;
use superpacket::wire::{Layer, parse};
use superpacket_c::sp_status::*;
use superpacket_c::*;
use superpacket_traffic::generate::{Config, Generated, generate};

const CANARY: u8 = 0xa5;

/// Memory for outputs, which lies between bytes that must not be written to.
struct Arrays {
    outputs: Vec<sp_output>,
    iov: Vec<sp_iovec>,
    tokens: Vec<*mut c_void>,
    headers: Vec<u8>,
    layouts: Vec<sp_layout>,
    space: sp_space,
}

const MARGIN: usize = 64;

fn nothing<T>() -> T {
    // SAFETY: used for structures of integers and raw pointers only, of which zeros are values.
    unsafe { mem::zeroed() }
}

impl Arrays {
    fn new(outputs: usize, iov: usize, headers: usize, with_tokens: bool) -> Self {
        let mut arrays = Arrays {
            outputs: vec![nothing(); outputs],
            iov: vec![nothing(); iov],
            tokens: vec![ptr::null_mut(); iov],
            headers: vec![CANARY; headers + 2 * MARGIN],
            layouts: vec![sp_layout::default(); outputs],
            space: nothing(),
        };
        arrays.space = sp_space {
            size: size_of::<sp_space>(),
            outputs: arrays.outputs.as_mut_ptr(),
            outputs_max: outputs,
            iov: arrays.iov.as_mut_ptr(),
            iov_max: iov,
            tokens: if with_tokens { arrays.tokens.as_mut_ptr() } else { ptr::null_mut() },
            headers: arrays.headers.as_mut_ptr().wrapping_add(MARGIN),
            headers_max: headers,
            header_places: ptr::null(),
            // The values of an earlier call.
            outputs_used: 77,
            iov_used: 77,
            headers_used: 77,
            layouts: arrays.layouts.as_mut_ptr(),
        };
        arrays
    }

    /// Checks the results of a call, and returns the outputs.
    fn outputs(&self, status: sp_status, packets: &[Given]) -> &[sp_output] {
        let space = &self.space;
        let (before, behind) =
            (&self.headers[..MARGIN], &self.headers[self.headers.len() - MARGIN..]);
        assert!(
            before.iter().chain(behind).all(|byte| *byte == CANARY),
            "written beside the headers"
        );
        if status != SP_OK && status != SP_FULL {
            assert_eq!(
                (space.outputs_used, space.iov_used, space.headers_used),
                (0, 0, 0),
                "{status:?}"
            );
            return &[];
        }
        assert!(
            space.outputs_used <= space.outputs_max
                && space.iov_used <= space.iov_max
                && space.headers_used <= space.headers_max
        );
        let within = |range: &sp_iovec, base: *const u8, length: usize| {
            let (start, from) = (range.iov_base as usize, base as usize);
            start >= from && start + range.iov_len <= from + length
        };
        let mut next = self.iov.as_ptr();
        for output in &self.outputs[..space.outputs_used] {
            assert_eq!(output.iov.cast_const(), next);
            assert!(output.iov_count >= 1);
            // SAFETY: the pointer is into the array, as has been compared, and `iov_used` counts
            // them.
            let ranges = unsafe { slice::from_raw_parts(output.iov, output.iov_count as usize) };
            assert_eq!(ranges.iter().map(|range| range.iov_len).sum::<usize>(), output.length);
            let tokens = match space.tokens.is_null() {
                true => ptr::null(),
                false => self.tokens.as_ptr().wrapping_add(
                    (output.iov.addr() - self.iov.as_ptr().addr()) / size_of::<sp_iovec>(),
                ),
            };
            assert_eq!(output.tokens.cast_const(), tokens);
            for (index, range) in ranges.iter().enumerate() {
                if index == 0 && output.header_length != 0 {
                    assert_eq!(range.iov_len, output.header_length as usize);
                    assert!(within(range, space.headers, space.headers_used));
                } else if range.iov_len != 0 {
                    let inside = |given: &Given| {
                        given.parts.iter().any(|part| within(range, part.as_ptr(), part.len()))
                    };
                    assert!(packets.iter().any(inside), "a range in no packet");
                }
            }
            next = next.wrapping_add(ranges.len());
        }
        assert_eq!(next, self.iov.as_ptr().wrapping_add(space.iov_used));
        &self.outputs[..space.outputs_used]
    }
}

/// A packet in several buffers.
#[derive(Clone, Debug)]
struct Given {
    parts: Vec<Vec<u8>>,
    rest: Vec<sp_iovec>,
    offload: sp_offload,
}

impl Given {
    fn new(bytes: &[u8], cuts: &[usize], offload: sp_offload) -> Self {
        let mut parts = vec![bytes.to_vec()];
        for cut in cuts {
            let last = parts.last_mut().expect("not empty");
            let tail = last.split_off(cut % (last.len() + 1));
            parts.push(tail);
        }
        Given { parts, rest: vec![], offload }
    }

    /// Returns the packet as a C structure. Its token is its number plus one.
    fn packet(&mut self, number: usize) -> sp_packet {
        let part = |part: &Vec<u8>| sp_iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        self.rest = self.parts[1..].iter().map(part).collect();
        sp_packet {
            data: self.parts[0].as_ptr().cast(),
            length: self.parts[0].len(),
            rest: if self.rest.is_empty() { ptr::null() } else { self.rest.as_ptr() },
            rest_count: self.rest.len() as u32,
            reserved: 0,
            token: ptr::without_provenance_mut(number + 1),
            offload: self.offload,
        }
    }
}

/// Generates the metadata of a packet: mostly none, otherwise any values.
fn offload() -> impl Strategy<Value = sp_offload> {
    let any = (
        0..5u8,
        0..3u8,
        any::<[u16; 3]>(),
        0..7u8,
        0..40u8,
        prop_oneof![Just(0u16), 1..2000u16, any::<u16>()],
        any::<u32>(),
    );
    let any = any.prop_map(
        |(checksum, checksum_level, [start, offset, sum], gso_type, flags, gso_size, hash)| {
            sp_offload {
                checksum,
                checksum_level,
                checksum_start: start % 200,
                checksum_offset: offset % 40,
                checksum_sum: sum,
                gso_type,
                flags,
                gso_size,
                hash,
                ..Default::default()
            }
        },
    );
    let verified = sp_offload { checksum: SP_CHECKSUM_VERIFIED, ..Default::default() };
    let cut = (1..6u8, 1..2000u16).prop_map(|(gso_type, gso_size)| sp_offload {
        gso_type,
        gso_size,
        ..Default::default()
    });
    prop_oneof![600 => Just(sp_offload::default()), 200 => Just(verified), 100 => cut, 9 => any]
}

/// Changes to a generated packet: its metadata, the places at which it is split into buffers, a
/// byte to change, and other bytes instead.
type Shape = (sp_offload, Vec<usize>, Option<(prop::sample::Index, u8)>, Option<Vec<u8>>);

/// Generates packets, some with changed bytes, and some of random bytes.
fn given() -> impl Strategy<Value = Vec<Given>> {
    let change = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
    let shape = (
        offload(),
        prop::collection::vec(0..2000usize, 0..4),
        change,
        prop::option::weighted(0.1, prop::collection::vec(any::<u8>(), 0..300)),
    );
    (any::<u64>(), prop::collection::vec(shape, 0..MOST)).prop_map(|(seed, shapes)| {
        let generated = generate(seed, &Config { flows: 3, ..Config::default() }, shapes.len());
        let one = |(generated, (offload, cuts, change, random)): (Generated, Shape)| {
            let mut bytes = random.unwrap_or(generated.bytes);
            if let Some((index, byte)) = change
                && !bytes.is_empty()
            {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            Given::new(&bytes, &cuts, offload)
        };
        generated.into_iter().zip(shapes).map(one).collect()
    })
}

fn policy() -> impl Strategy<Value = sp_policy> {
    let limit = || prop_oneof![3 => Just(0u32), 1 => 1..100u32, 1 => any::<u32>()];
    let sizes = prop_oneof![20 => Just(0u32), 2 => Just(10u32), 2 => Just(24u32), 1 => 0..40u32];
    let fragments = prop_oneof![2 => Just(0u32), 1 => 1..30u32];
    let mode = prop_oneof![20 => 0..4u32, 1 => Just(4u32)];
    let layer = prop_oneof![20 => Just(0u32), 3 => Just(1u32), 1 => Just(2u32)];
    let flags = prop_oneof![20 => 0..8u32, 1 => Just(8u32)];
    (
        mode,
        layer,
        flags,
        sizes,
        0..3u32,
        [limit(), limit(), limit(), limit()],
        fragments,
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(
                mode,
                layer,
                flags,
                virtio_length,
                virtio_order,
                [max_bytes, max_packets, max_datagrams, max_flows],
                max_fragments,
                key,
            )| {
                sp_policy {
                    size: size_of::<sp_policy>(),
                    mode,
                    layer,
                    flags,
                    virtio_length,
                    virtio_order,
                    max_bytes,
                    max_packets,
                    max_datagrams,
                    max_fragments,
                    // Creating a table of a million flows takes a while.
                    max_flows: max_flows % 5000,
                    max_held_bytes: u64::from(max_bytes),
                    hold_time: key[0] % 3,
                    key,
                }
            },
        )
}

fn arrays() -> impl Strategy<Value = (usize, usize, usize, bool)> {
    let iov = prop_oneof![9 => 1024..1100usize, 1 => 0..60usize];
    (
        prop_oneof![20 => 1..9usize, 1 => Just(0usize)],
        iov,
        prop_oneof![9 => 320..4000usize, 1 => 0..400usize],
        any::<bool>(),
    )
}

/// Returns the bytes of an output whose ranges `Arrays::outputs` has checked.
fn bytes_of(output: &sp_output) -> Vec<u8> {
    // SAFETY: it has so many ranges.
    let ranges = unsafe { slice::from_raw_parts(output.iov, output.iov_count as usize) }
        .iter()
        .filter(|range| range.iov_len != 0);
    // SAFETY: each lies in a packet, or in memory for headers.
    ranges
        .flat_map(|range| unsafe {
            slice::from_raw_parts(range.iov_base.cast::<u8>(), range.iov_len)
        })
        .copied()
        .collect()
}

/// Counts the tokens of a batch's outputs. Unless the mode absorbs packets, an output names all of
/// its packets.
fn count(counts: &mut HashMap<usize, usize>, arrays: &Arrays, mode: u32) {
    for output in &arrays.outputs[..arrays.space.outputs_used] {
        // SAFETY: `Arrays::outputs` has compared the pointer with that of the array, and counted
        // the ranges.
        let tokens = unsafe { slice::from_raw_parts(output.tokens, output.iov_count as usize) };
        let (mut last, mut named) = (0, 0);
        for token in tokens.iter().map(|token| token.addr()) {
            if token != 0 && token != last {
                *counts.entry(token).or_default() += 1;
                (last, named) = (token, named + 1);
            }
        }
        // A packet without bytes has no range behind a virtio_net_hdr.
        let is_empty = output.length == output.header_length as usize;
        assert!(
            mode > SP_MODE_GRO_UDP || is_empty || named == output.packets,
            "{named} of {} packets are named",
            output.packets
        );
    }
}

/// Checks that the headers of each output are where its layout says.
fn check_layouts(arrays: &Arrays, policy: &sp_policy) {
    let layer = if policy.layer == SP_LAYER_IP { Layer::Ip } else { Layer::Ethernet };
    for (output, found) in
        arrays.outputs.iter().zip(&arrays.layouts).take(arrays.space.outputs_used)
    {
        let bytes = bytes_of(output);
        let packet = &bytes[policy.virtio_length as usize..];
        if output.packets > 1 && policy.mode <= SP_MODE_GRO_UDP {
            assert_ne!(found.ip_version, 0, "the headers of what merged are known");
        }
        if found.ip_version != 0 {
            // A BIG TCP packet has no valid length field, and no padding.
            let parsed = parse(packet, packet.len(), layer).map(|layout| sp_layout::from(&layout));
            assert_eq!(parsed, Ok(*found), "{packet:02x?}");
        }
    }
}

/// Number of cases per test. Under Miri, a case takes seconds.
const CASES: u32 = if cfg!(miri) { 2 } else { 300 };
const MOST: usize = if cfg!(miri) { 6 } else { 40 };

/// Number of batches without an error. If all batches were refused, the test would prove little.
static WHOLE: AtomicUsize = AtomicUsize::new(0);

#[test]
fn batches_of_random_packets() {
    batches();
    let whole = WHOLE.load(Relaxed);
    println!("{whole} of {CASES} were not refused");
    assert!(cfg!(miri) || whole > CASES as usize / 3, "only {whole} of {CASES} were not refused");
}

/// A batch that two threads share.
struct Shared(*mut sp_batch);

// SAFETY: the batch lives until both threads have ended.
unsafe impl Sync for Shared {}

/// If two threads use one object at the same time, which is forbidden, one of them gets
/// SP_ERROR_BUSY.
#[test]
#[cfg_attr(miri, ignore = "it makes the mistake that Miri looks for")]
fn an_object_in_use_is_busy() {
    const PACKETS: usize = 20_000;
    let frame = [0u8; 60];
    let packets_of = |count: usize| {
        vec![sp_packet { data: frame.as_ptr().cast(), length: frame.len(), ..nothing() }; count]
    };
    let policy = sp_policy { size: size_of::<sp_policy>(), ..nothing() };
    let mut batch = ptr::null_mut();
    // SAFETY: both are ours.
    assert_eq!(unsafe { sp_batch_new(&policy, &mut batch) }, SP_OK);
    let (shared, found) = (Shared(batch), AtomicUsize::new(0));
    let until_found = |count: usize| {
        let (shared, packets) = (&shared, packets_of(count));
        let mut arrays = Arrays::new(PACKETS, 2 * PACKETS, SP_MAX_HEADER, false);
        while found.load(Relaxed) == 0 {
            // SAFETY: packets and arrays are ours. The batch is used by another thread, so that one
            // of the calls is refused before it touches more than the batch's state.
            let status = unsafe {
                sp_batch_aggregate(shared.0, packets.as_ptr(), packets.len(), &mut arrays.space)
            };
            assert!(matches!(status, SP_OK | SP_ERROR_BUSY), "{status:?}");
            assert_eq!(arrays.space.outputs_used, if status == SP_OK { packets.len() } else { 0 });
            if status == SP_ERROR_BUSY {
                found.store(1, Relaxed);
                let mut text = [0; 100];
                // SAFETY: there are as many bytes as is said.
                unsafe { sp_message(text.as_mut_ptr(), text.len()) };
                // SAFETY: `sp_message` has written a zero byte.
                let text = unsafe { CStr::from_ptr(text.as_ptr()) };
                assert_eq!(
                    text,
                    c"the object is in use by another call: one thread at a time may use it"
                );
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| until_found(PACKETS));
        scope.spawn(|| until_found(1));
    });
    // The batch is unchanged.
    let mut arrays = Arrays::new(PACKETS, 2 * PACKETS, SP_MAX_HEADER, false);
    let packets = packets_of(PACKETS);
    // SAFETY: all is ours, and nobody else uses it.
    let status = unsafe { sp_batch_aggregate(batch, packets.as_ptr(), PACKETS, &mut arrays.space) };
    assert_eq!(status, SP_OK);
    // SAFETY: made above.
    unsafe { sp_batch_free(batch) };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    fn batches(mut given in given(), policy in policy(), (outputs, iov, headers, with_tokens) in arrays()) {
        let mut batch = ptr::null_mut();
        // SAFETY: both are ours.
        let status = unsafe { sp_batch_new(&policy, &mut batch) };
        prop_assert_eq!(status == SP_OK, !batch.is_null());
        let packets: Vec<_> = given.iter_mut().enumerate().map(|(number, given)| given.packet(number)).collect();
        let mut arrays = Arrays::new(outputs, iov, headers, with_tokens);
        let mut counts = HashMap::new();
        let mut total = 0;
        // SAFETY: packets, buffers and arrays are ours, and as long as is said. A NULL batch is
        // refused.
        let mut status = unsafe { sp_batch_aggregate(batch, packets.as_ptr(), packets.len(), &mut arrays.space) };
        let mut calls = 0;
        loop {
            let outputs = arrays.outputs(status, &given);
            if (status as i32) >= 0 {
                check_layouts(&arrays, &policy);
            }
            total += outputs.iter().map(|output| output.packets as usize).sum::<usize>();
            prop_assert!(status != SP_FULL || !outputs.is_empty(), "full of nothing");
            if with_tokens {
                count(&mut counts, &arrays, policy.mode);
            }
            calls += 1;
            prop_assert!(calls < 1000);
            if status != SP_FULL {
                break;
            }
            // SAFETY: as above.
            status = unsafe { sp_batch_continue(batch, packets.as_ptr(), packets.len(), &mut arrays.space) };
        }
        if status == SP_OK {
            WHOLE.fetch_add(1, Relaxed);
            prop_assert_eq!(total, packets.len());
            let mut values = [0; 64];
            // SAFETY: the batch is there, and there are as many numbers as is said.
            prop_assert_eq!(unsafe { sp_batch_counters(batch, values.as_mut_ptr(), values.len()) }, SP_OK);
            prop_assert_eq!(values[0], values[1] + values[2] + values[3]);
            if with_tokens && policy.mode < SP_MODE_LRO_ACKS {
                for (number, given) in given.iter().enumerate() {
                    let bytes = given.parts.iter().any(|part| !part.is_empty());
                    prop_assert!(!bytes || counts.get(&(number + 1)) == Some(&1), "packet {}: {:?}", number, counts.get(&(number + 1)));
                }
            }
        } else {
            prop_assert!((status as i32) < 0);
        }
        // SAFETY: it was made above, or is NULL.
        unsafe { sp_batch_free(batch) };
    }

    #[test]
    fn held(mut given in given(), policy in policy(), (outputs, iov, headers, with_tokens) in arrays(), split in 1..10usize) {
        given.iter_mut().for_each(|given| given.parts = vec![given.parts.concat()]);
        let mut aggregator = ptr::null_mut();
        // SAFETY: both are ours.
        let _ = unsafe { sp_aggregator_new(&policy, &mut aggregator) };
        let packets: Vec<_> = given.iter_mut().enumerate().map(|(number, given)| given.packet(number)).collect();
        let mut arrays = Arrays::new(outputs, iov, headers, with_tokens);
        let (mut total, mut taken, mut now) = (0, 0, 0);
        for chunk in packets.chunks(split) {
            now += 1;
            // SAFETY: packets, buffers and arrays are ours, and as long as is said; the packets
            // stay until the aggregator is freed.
            let status = unsafe { sp_aggregator_receive(aggregator, chunk.as_ptr(), chunk.len(), now, &mut arrays.space) };
            total += arrays.outputs(status, &given).iter().map(|output| output.packets as usize).sum::<usize>();
            taken += if (status as i32) < 0 { 0 } else { chunk.len() };
            // SAFETY: as above.
            let status = unsafe { sp_aggregator_poll_end(aggregator, now, &mut arrays.space) };
            total += arrays.outputs(status, &given).iter().map(|output| output.packets as usize).sum::<usize>();
        }
        let mut status = SP_FULL;
        while status == SP_FULL {
            // SAFETY: as above.
            status = unsafe { sp_aggregator_flush(aggregator, &mut arrays.space) };
            total += arrays.outputs(status, &given).iter().map(|output| output.packets as usize).sum::<usize>();
        }
        if status == SP_OK {
            prop_assert_eq!(total, taken);
            let mut back = vec![0; packets.len()];
            let (mut tokens, mut count, mut status) = ([ptr::null_mut(); 7], 0, SP_FULL);
            while status == SP_FULL {
                // SAFETY: the arrays are ours, and as long as is said.
                status = unsafe { sp_aggregator_done(aggregator, tokens.as_mut_ptr(), 7, &mut count) };
                tokens[..count].iter().for_each(|token| back[token.addr() - 1] += 1);
            }
            prop_assert_eq!(back.iter().sum::<usize>(), taken);
            prop_assert!(back.iter().all(|count| *count <= 1));
        }
        // SAFETY: it was made above, or is NULL.
        unsafe { sp_aggregator_free(aggregator) };
    }

    #[test]
    fn one_packet(mut given in given(), (outputs, iov, headers, with_tokens) in arrays(), numbers in any::<[u32; 4]>(), size in 0..70_000usize) {
        let mut segmenter = ptr::null_mut();
        // SAFETY: the place is ours.
        prop_assert_eq!(unsafe { sp_segmenter_new(&mut segmenter) }, SP_OK);
        let mut toeplitz = ptr::null_mut();
        // SAFETY: the place is ours; no key is given.
        prop_assert_eq!(unsafe { sp_toeplitz_new(ptr::null(), 0, numbers[0] % 3, &mut toeplitz) } == SP_OK, numbers[0] % 3 < 2);
        let options = sp_segment_options {
            size: size_of::<sp_segment_options>(),
            layer: numbers[0] % 2,
            checksum: numbers[1] % 4,
            max_segments: numbers[2] % 100,
            fragment_id: numbers[3],
        };
        let mut buffer = vec![CANARY; size + 2 * MARGIN];
        for number in 0..given.len() {
            let packet = given[number].packet(number);
            let mut arrays = Arrays::new(outputs * 8, iov, headers * 4, with_tokens);
            // SAFETY: the packet, its buffers and the arrays are ours, and as long as is said.
            let status = unsafe { sp_segment(segmenter, &packet, &options, &mut arrays.space) };
            let segments = arrays.outputs(status, &given[number..=number]);
            let mut headers = vec![CANARY; segments.len().max(1) * SP_MAX_HEADER + MARGIN];
            let places: Vec<*mut c_void> = (0..segments.len()).map(|index| headers.as_mut_ptr().wrapping_add(index * SP_MAX_HEADER).cast()).collect();
            let mut alone: sp_headers = nothing();
            // SAFETY: as above; a place for each segment that there was.
            let written = unsafe { sp_segment_headers(segmenter, &packet, &options, places.as_ptr(), places.len(), &mut alone) };
            if status == SP_OK && packet.offload.gso_type != SP_GSO_UDP_FRAGMENTS {
                prop_assert_eq!((written, alone.plan.segments), (SP_OK, segments.len()));
                let (whole, mut start) = (given[number].parts.concat(), alone.payload_start);
                for (output, place) in segments.iter().zip(headers.chunks(SP_MAX_HEADER)) {
                    prop_assert_eq!((output.header_length as usize, output.offload), (alone.header_length, alone.offload));
                    let bytes = bytes_of(output);
                    let (own, payload) = bytes.split_at(alone.header_length);
                    prop_assert_eq!(own, &place[..alone.header_length]);
                    prop_assert_eq!(payload, &whole[start..start + payload.len()]);
                    start += payload.len();
                }
            } else {
                prop_assert!(written != SP_OK);
            }
            prop_assert!(headers[segments.len() * SP_MAX_HEADER..].iter().all(|byte| *byte == CANARY), "written beside the places");
            let gathered: Vec<usize> = segments.iter().map(|output| output.length).collect();
            let mut plan = nothing();
            // SAFETY: the buffer is ours, with `size` bytes behind the margin.
            let linear = unsafe { sp_segment_linear(segmenter, &packet, &options, buffer.as_mut_ptr().add(MARGIN).cast(), size, &mut plan) };
            if (status, linear) == (SP_OK, SP_OK) {
                prop_assert_eq!(gathered.len(), plan.segments);
                prop_assert_eq!(gathered.last(), Some(&plan.last_length));
            }
            let mut buffers = [sp_iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 8];
            for (index, place) in buffers.iter_mut().enumerate() {
                *place = sp_iovec { iov_base: buffer.as_mut_ptr().wrapping_add(MARGIN + index * (size / 8)).cast(), iov_len: size / 8 };
            }
            let mut lengths = [0; 8];
            let offset = numbers[3] as usize % 64;
            // SAFETY: eight parts of the buffer that do not overlap, and eight lengths.
            let _ = unsafe { sp_segment_each(segmenter, &packet, &options, buffers.as_ptr(), 8, offset, lengths.as_mut_ptr(), ptr::null_mut()) };
            let read = &given[number].parts[0];
            let (length, order, layer) = ([10, 12, 20, 24, 0][numbers[1] as usize % 5], numbers[2] % 4, numbers[0] % 3);
            // SAFETY: what is read is ours, and as long as is said; the buffer as above.
            let _ = unsafe {
                sp_split_linear(segmenter, length, order, layer, read.as_ptr().cast(), read.len(), buffer.as_mut_ptr().add(MARGIN).cast(), size, &mut plan)
            };
            let mut made: sp_packet = nothing();
            // SAFETY: what is read is ours; so is the packet.
            if unsafe { sp_virtio_read(length, order, layer, read.as_ptr().cast(), read.len(), &mut made) } == SP_OK {
                prop_assert_eq!(made.length + length as usize, read.len());
                // SAFETY: the packet points into what is read; the buffer as above.
                let _ = unsafe { sp_virtio_write(length, order, layer, &made, buffer.as_mut_ptr().add(MARGIN).cast(), size) };
            }
            // SAFETY: as above.
            let _ = unsafe { sp_virtio_write(length, order, layer, &packet, buffer.as_mut_ptr().add(MARGIN).cast(), size) };
            // SAFETY: the packet is ours.
            let verified = unsafe { sp_checksum_verify(&packet, numbers[0] % 2) };
            prop_assert!(verified != SP_ERROR_INTERNAL && verified != SP_FULL);
            let mut copy = given[number].parts[0].clone();
            let (start, place) = (packet.offload.checksum_start, packet.offload.checksum_offset);
            // SAFETY: the copy is ours.
            let completed = unsafe { sp_checksum_complete(copy.as_mut_ptr().cast(), copy.len(), numbers[0] % 2, start, place) };
            prop_assert!(completed == SP_OK || copy == given[number].parts[0], "changed on an error");
            let mut hash = 0;
            // SAFETY: the packet and the number are ours; tables that were not made are NULL, and
            // refused.
            let _ = unsafe { sp_toeplitz_packet(toeplitz, &packet, numbers[0] % 3, &mut hash) };
            let mut changed = packet;
            // SAFETY: the packet is ours.
            let for_mtu = unsafe { sp_gso_for_mtu(&mut changed, numbers[0] % 2, numbers[3] as usize % 2000) };
            if for_mtu == SP_OK && changed.offload != packet.offload {
                let mut options = options;
                (options.checksum, options.max_segments) = (SP_OUTPUT_FULL, 0);
                // SAFETY: as above.
                let planned = unsafe { sp_segment_plan(segmenter, &changed, &options, &mut plan) };
                if planned == SP_OK && changed.offload.gso_type != SP_GSO_NONE {
                    let link = if numbers[0] % 2 == SP_LAYER_IP { 0 } else { 64 };
                    prop_assert!(plan.segment_length <= numbers[3] as usize % 2000 + link, "{:?}", plan);
                }
            }
            prop_assert!([status, linear, completed, for_mtu].iter().all(|status| *status != SP_ERROR_INTERNAL));
        }
        let canaries = buffer[..MARGIN].iter().chain(&buffer[size + MARGIN..]);
        prop_assert!(canaries.copied().all(|byte| byte == CANARY), "written beside the buffer");
        let mut values = [0; 64];
        // SAFETY: there are as many numbers as is said.
        prop_assert_eq!(unsafe { sp_segmenter_counters(segmenter, values.as_mut_ptr(), values.len()) }, SP_OK);
        prop_assert_eq!(values[0], values[1] + values[2] + values[3]);
        // SAFETY: made above, or NULL.
        unsafe { sp_segmenter_free(segmenter) };
        // SAFETY: made above, or NULL.
        unsafe { sp_toeplitz_free(toeplitz) };
    }

    #[test]
    fn lengths(words in prop::collection::vec(any::<u64>(), 16), count in prop_oneof![any::<usize>(), Just(usize::MAX), Just(1 << 20)]) {
        // Structures of random words with NULL pointers: nothing can be read or written, and every
        // call is refused.
        let mut packet: sp_packet = nothing();
        (packet.length, packet.rest_count) = (words[0] as usize | 1, words[1] as u32);
        let mut space: sp_space = nothing();
        (space.size, space.outputs_max, space.iov_max, space.headers_max) =
            (size_of::<sp_space>(), words[2] as usize, words[3] as usize, words[4] as usize);
        let policy = sp_policy { size: size_of::<sp_policy>(), ..nothing() };
        let mut batch = ptr::null_mut();
        // SAFETY: both are ours.
        prop_assert_eq!(unsafe { sp_batch_new(&policy, &mut batch) }, SP_OK);
        // SAFETY: all pointers are NULL, or to structures of ours; counts are too large, or 1.
        unsafe {
            prop_assert!((sp_batch_aggregate(batch, &packet, 1, &mut space) as i32) < 0);
            prop_assert!((sp_batch_aggregate(batch, ptr::null(), count | 1, &mut space) as i32) < 0);
            prop_assert!((sp_checksum_sum(ptr::null(), count | 1, &mut 0) as i32) < 0);
            prop_assert!((sp_checksum_complete(ptr::null_mut(), count | 1, 0, 0, 0) as i32) < 0);
            prop_assert!((sp_virtio_read(10, 0, 0, ptr::null(), count | 1, &mut packet) as i32) < 0);
            prop_assert!((sp_checksum_verify(&packet, 0) as i32) < 0);
            sp_batch_free(batch);
        }
    }
}
