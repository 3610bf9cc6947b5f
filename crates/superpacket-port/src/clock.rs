//! The clock for the receive times of packets.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the monotonic clock in nanoseconds.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
