//! The timer that becomes readable when a replayed frame is due.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use crate::PortError;

const NANOSECONDS: u64 = 1_000_000_000;

/// Makes a timer readable at `time`, in nanoseconds of the monotonic clock; 0 means never.
pub(super) fn set_timer(text: &str, timer: &OwnedFd, time: u64) -> Result<(), PortError> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value =
        Timespec { tv_sec: (time / NANOSECONDS) as i64, tv_nsec: (time % NANOSECONDS) as _ };
    let value = Itimerspec { it_interval: zero, it_value: value };
    match timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &value) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(PortError::system(text, "set the timer (timerfd_settime)", io::Error::from(error)))
        }
    }
}
