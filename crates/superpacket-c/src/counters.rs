//! Access to counters and to the reasons why packets left an aggregator, and their names.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::OnceLock;

use superpacket::segment::SegmentCounters;
use superpacket::{AggregateCounters, Reason, SegmentError};

use crate::batch::sp_batch;
use crate::hold::sp_aggregator;
use crate::memory::memory;
use crate::object::with_ref;
use crate::segment::sp_segmenter;
use crate::status::sp_status::{self, SP_OK};
use crate::status::{Failure, guard};

/// Names of counters, each with the function that reads its value.
type CounterTable<T> = [(&'static str, fn(&T) -> u64)];

/// The counters of an aggregator. New counters are added at the end.
const COUNTERS: &CounterTable<AggregateCounters> = &[
    ("packets_in", |counters| counters.packets_in),
    ("packets_out", |counters| counters.packets_out),
    ("merged", |counters| counters.merged),
    ("held", |counters| counters.held),
    ("bytes_in", |counters| counters.bytes_in),
    ("bytes_out", |counters| counters.bytes_out),
    ("super_packets", |counters| counters.super_packets),
    ("held_bytes", |counters| counters.held_bytes),
    ("absorbed_acks", |counters| counters.absorbed_acks),
    ("verified_in_software", |counters| counters.verified_in_software),
    ("aggregated", |counters| counters.aggregated),
    ("flushed", |counters| counters.flushed),
    ("no_desc", |counters| counters.no_desc),
    ("probes", |counters| counters.probes),
];

/// The counters of a segmenter, except those of single errors. New counters are added at the end.
const SEGMENT_COUNTERS: &CounterTable<SegmentCounters> = &[
    ("packets", |counters| counters.packets),
    ("cut", |counters| counters.cut),
    ("passed", |counters| counters.passed),
    ("refused", SegmentCounters::refused),
    ("segments", |counters| counters.segments),
    ("payload_in", |counters| counters.payload_in),
    ("payload_out", |counters| counters.payload_out),
];

/// The names of counters or reasons as C strings, which are created when a name is first requested.
struct Names(OnceLock<Box<[CString]>>);

impl Names {
    const fn new() -> Self {
        Names(OnceLock::new())
    }

    fn name(
        &'static self,
        index: usize,
        names: impl Iterator<Item = &'static str>,
    ) -> *const c_char {
        let made = self
            .0
            .get_or_init(|| names.map(|name| CString::new(name).unwrap_or_default()).collect());
        made.get(index).map_or(ptr::null(), |name| name.as_ptr())
    }
}

/// Runs a function that returns a name. A panic results in NULL.
fn named(name: impl FnOnce() -> *const c_char) -> *const c_char {
    let mut found = ptr::null();
    let _ = guard(|| {
        found = name();
        Ok(SP_OK)
    });
    found
}

/// Returns the name of a counter of an aggregator or batch, such as "packets_in".
///
/// At any time packets_in = packets_out + merged + held.
///
/// \param index from 0 on. Numbers may change between releases, names do not.
/// \return a static string; NULL behind the last counter.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sp_counter_name(index: usize) -> *const c_char {
    static NAMES: Names = Names::new();
    named(|| NAMES.name(index, COUNTERS.iter().map(|(name, _)| *name)))
}

/// Returns the name of a reason why a packet left an aggregator, such as "push".
///
/// \param index from 0 on: the field reason of an sp_output. Numbers may change between releases,
/// names do not.
/// \return a static string; NULL behind the last reason.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sp_reason_name(index: usize) -> *const c_char {
    static NAMES: Names = Names::new();
    named(|| NAMES.name(index, Reason::ALL.iter().map(|reason| reason.name())))
}

/// Returns the name of a counter of a segmenter, such as "segments". Counters whose names begin
/// with "refused_" divide "refused" by error.
///
/// At any time packets = cut + passed + refused, and payload_in = payload_out.
///
/// \param index from 0 on. Numbers may change between releases, names do not.
/// \return a static string; NULL behind the last counter.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sp_segment_counter_name(index: usize) -> *const c_char {
    static NAMES: Names = Names::new();
    static ERRORS: OnceLock<Vec<String>> = OnceLock::new();
    let errors = || {
        ERRORS
            .get_or_init(|| {
                SegmentError::NAMES.iter().map(|name| format!("refused_{name}")).collect()
            })
            .iter()
    };
    named(|| {
        NAMES.name(
            index,
            SEGMENT_COUNTERS.iter().map(|(name, _)| *name).chain(errors().map(String::as_str)),
        )
    })
}

/// Writes the first `max` numbers to `values`, and zeros behind the last number.
///
/// # Safety
/// `values` is NULL or the caller's memory for `max` numbers.
unsafe fn write_values(
    values: *mut u64,
    max: usize,
    numbers: impl Iterator<Item = u64>,
) -> Result<sp_status, Failure> {
    // SAFETY: as the caller promises.
    let places = unsafe { memory("values", values, max) }?;
    for (place, number) in places.iter_mut().zip(numbers.chain(std::iter::repeat(0))) {
        place.write(number);
    }
    Ok(SP_OK)
}

fn reasons(counters: &AggregateCounters) -> impl Iterator<Item = u64> {
    Reason::ALL.iter().map(|reason| counters.reason(*reason))
}

fn all(counters: &AggregateCounters) -> impl Iterator<Item = u64> {
    COUNTERS.iter().map(move |(_, value)| value(counters))
}

/// Reads the counters of a batch.
///
/// \param batch the object.
/// \param values receives the values: number n is that of sp_counter_name(n). Numbers behind the
/// last counter are set to 0.
/// \param max room in values.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Only one thread at a time may use an sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_counters(
    batch: *const sp_batch,
    values: *mut u64,
    max: usize,
) -> sp_status {
    // SAFETY: `batch` is NULL or made by `sp_batch_new`, and `values` is as `write_values` demands.
    guard(|| unsafe {
        with_ref("batch", batch, |batch| {
            write_values(values, max, all(batch.object.inner().counters()))
        })
    })
}

/// Reads how many packets left a batch for each reason. The sum of these numbers is packets_out.
///
/// \param batch the object.
/// \param values receives the values: number n is that of sp_reason_name(n). Numbers behind the
/// last reason are set to 0.
/// \param max room in values.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Only one thread at a time may use an sp_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_batch_reasons(
    batch: *const sp_batch,
    values: *mut u64,
    max: usize,
) -> sp_status {
    // SAFETY: as above.
    guard(|| unsafe {
        with_ref("batch", batch, |batch| {
            write_values(values, max, reasons(batch.object.inner().counters()))
        })
    })
}

/// Reads the counters of an aggregator, as sp_batch_counters.
///
/// \param aggregator the object.
/// \param values, max as for sp_batch_counters.
/// \return as sp_batch_counters.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_counters(
    aggregator: *const sp_aggregator,
    values: *mut u64,
    max: usize,
) -> sp_status {
    // SAFETY: `aggregator` is NULL or made by `sp_aggregator_new`, and `values` is as
    // `write_values` demands.
    guard(|| unsafe {
        with_ref("aggregator", aggregator, |aggregator| {
            write_values(values, max, all(aggregator.object.inner().counters()))
        })
    })
}

/// Reads how many packets left an aggregator for each reason, as sp_batch_reasons.
///
/// \param aggregator the object.
/// \param values, max as for sp_batch_reasons.
/// \return as sp_batch_reasons.
/// \note Only one thread at a time may use an sp_aggregator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_aggregator_reasons(
    aggregator: *const sp_aggregator,
    values: *mut u64,
    max: usize,
) -> sp_status {
    // SAFETY: as above.
    guard(|| unsafe {
        with_ref("aggregator", aggregator, |aggregator| {
            write_values(values, max, reasons(aggregator.object.inner().counters()))
        })
    })
}

/// Reads the counters of a segmenter.
///
/// \param segmenter the object.
/// \param values receives the values: number n is that of sp_segment_counter_name(n). Numbers
/// behind the last counter are set to 0.
/// \param max room in values.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segmenter_counters(
    segmenter: *const sp_segmenter,
    values: *mut u64,
    max: usize,
) -> sp_status {
    guard(|| {
        // SAFETY: `segmenter` is NULL or made by `sp_segmenter_new`, and `values` is as
        // `write_values` demands.
        unsafe {
            with_ref("segmenter", segmenter, |segmenter| {
                let counters = segmenter.object.inner().counters();
                write_values(
                    values,
                    max,
                    SEGMENT_COUNTERS
                        .iter()
                        .map(|(_, value)| value(counters))
                        .chain(counters.errors),
                )
            })
        }
    })
}
