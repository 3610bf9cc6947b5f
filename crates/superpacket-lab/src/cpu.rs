//! CPU time of a thread, a process and the whole machine, and CPU affinity of threads.

use std::fs;
use std::io;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use superpacket_port::system;

use crate::error::{Context, LabError};

/// CPU time of a thread or process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// CPU time in user mode.
    pub user: Duration,
    /// Time in the kernel. Includes interrupts and softirqs that ran on the thread, unless the
    /// kernel accounts them separately (`CONFIG_IRQ_TIME_ACCOUNTING`).
    pub system: Duration,
}

impl CpuTime {
    /// Returns the CPU time of the calling thread since it started (getrusage(2), `RUSAGE_THREAD`).
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self::usage(UsageWho::RUSAGE_THREAD)
    }

    /// Returns the CPU time of this process since it started, including finished threads
    /// (getrusage(2), `RUSAGE_SELF`).
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::usage(UsageWho::RUSAGE_SELF)
    }

    fn usage(whose: UsageWho) -> Self {
        // Fails only for an invalid selector or a bad address; neither can occur here.
        getrusage(whose).map_or_else(
            |_| Self::default(),
            |usage| Self {
                user: duration(usage.user_time()),
                system: duration(usage.system_time()),
            },
        )
    }

    /// Returns the CPU time of all live threads of a process (`/proc/PID/task/*/stat`), in steps of
    /// a clock tick, usually 10 ms.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if there is no such process.
    pub fn of_process(pid: u32) -> Result<Self, LabError> {
        let path = format!("/proc/{pid}/task");
        let mut sum = Self::default();
        for task in fs::read_dir(&path).context(|| path.clone())? {
            let Ok(task) = task else { continue };
            // A thread may end after it was listed.
            let Ok(text) = fs::read_to_string(task.path().join("stat")) else { continue };
            sum += Self::from_stat(&text).ok_or_else(|| {
                LabError::system(format!("{path}: unreadable"), io::ErrorKind::InvalidData)
            })?;
        }
        Ok(sum)
    }

    /// Returns user and system time together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.user + self.system
    }

    /// Parses user and system time from proc_pid_stat(5): fields 14 and 15. Counting starts after
    /// the name, which is in parentheses and may contain any byte.
    pub(crate) fn from_stat(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok().map(ticks_to_duration);
        Some(Self { user: ticks()?, system: ticks()? })
    }
}

fn duration(time: TimeVal) -> Duration {
    Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
}

fn ticks_to_duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

impl Add for CpuTime {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

impl AddAssign for CpuTime {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for CpuTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), Add::add)
    }
}

impl Sub for CpuTime {
    type Output = Self;
    /// Subtracts user and system time separately; a difference below zero becomes zero.
    fn sub(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_sub(other.user),
            system: self.system.saturating_sub(other.system),
        }
    }
}

/// CPU time by type, in seconds (`/proc/stat`, in steps of a clock tick).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// Time in user mode, including niced processes.
    pub user: f64,
    /// Time in kernel mode without interrupts.
    pub system: f64,
    /// Time in hardware interrupts.
    pub interrupt: f64,
    /// Seconds in softirqs, in which the network stack receives packets.
    pub soft_interrupt: f64,
    /// Seconds idle, including waiting for I/O.
    pub idle: f64,
    /// Seconds that the hypervisor gave to other guests.
    pub stolen: f64,
}

impl CpuUsage {
    /// Returns the busy share of the CPU time, 0 to 1; 0 if no time passed.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let whole = self.busy() + self.idle + self.stolen;
        if whole > 0.0 { self.busy() / whole } else { 0.0 }
    }

    /// Returns the idle share of the CPU time, 0 to 1; `None` if no time passed. Time stolen by
    /// other guests of the hypervisor does not count as idle.
    #[must_use]
    pub fn idle_share(&self) -> Option<f64> {
        let whole = self.busy() + self.idle + self.stolen;
        (whole > 0.0).then(|| self.idle / whole)
    }

    /// Returns the busy time in seconds.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.interrupt + self.soft_interrupt
    }

    fn since(&self, earlier: &Self) -> Self {
        // The kernel's idle counter may step back (proc_stat(5)).
        let difference = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            user: difference(self.user, earlier.user),
            system: difference(self.system, earlier.system),
            interrupt: difference(self.interrupt, earlier.interrupt),
            soft_interrupt: difference(self.soft_interrupt, earlier.soft_interrupt),
            idle: difference(self.idle, earlier.idle),
            stolen: difference(self.stolen, earlier.stolen),
        }
    }

    /// Parses the fields of a `cpu` line after its name: user, nice, system, idle, iowait, irq,
    /// softirq, steal.
    fn from_fields<'a>(fields: impl Iterator<Item = &'a str>) -> Self {
        let mut seconds = [0.0; 8];
        for (second, field) in seconds.iter_mut().zip(fields) {
            *second = field.parse().map_or(0.0, |ticks| ticks_to_duration(ticks).as_secs_f64());
        }
        let [user, nice, system, idle, wait, interrupt, soft_interrupt, stolen] = seconds;
        Self { user: user + nice, system, interrupt, soft_interrupt, idle: idle + wait, stolen }
    }
}

/// Counters of all CPUs at one moment.
#[derive(Clone, Debug)]
pub struct MachineSample {
    at: Instant,
    total: CpuUsage,
    cpus: Vec<(usize, CpuUsage)>,
}

/// CPU usage of the machine between two samples.
#[derive(Clone, Debug, Default)]
pub struct MachineUsage {
    /// Seconds between the samples.
    pub seconds: f64,
    /// Sum over all CPUs; its [`CpuUsage::utilisation`] is netperf's "CPU utilisation".
    pub total: CpuUsage,
    /// CPU number and usage of each CPU.
    pub cpus: Vec<(usize, CpuUsage)>,
}

impl MachineSample {
    /// Reads the current counters of all CPUs.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if `/proc/stat` cannot be read.
    pub fn now() -> Result<Self, LabError> {
        let text = fs::read_to_string("/proc/stat").context(|| "/proc/stat".into())?;
        let mut sample = Self { at: Instant::now(), total: CpuUsage::default(), cpus: Vec::new() };
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            match fields.next().and_then(|name| name.strip_prefix("cpu")) {
                Some("") => sample.total = CpuUsage::from_fields(fields),
                Some(number) => sample.cpus.extend(
                    number.parse().ok().map(|number| (number, CpuUsage::from_fields(fields))),
                ),
                None => break,
            }
        }
        Ok(sample)
    }

    /// Returns the usage since an earlier sample.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> MachineUsage {
        let cpus = self.cpus.iter().filter_map(|(number, usage)| {
            let (_, then) = earlier.cpus.iter().find(|(other, _)| other == number)?;
            Some((*number, usage.since(then)))
        });
        MachineUsage {
            seconds: self.at.duration_since(earlier.at).as_secs_f64(),
            total: self.total.since(&earlier.total),
            cpus: cpus.collect(),
        }
    }
}

/// Returns the numbers of the CPUs that the calling thread may run on.
///
/// # Errors
///
/// [`LabError::System`] if sched_getaffinity(2) fails.
pub fn allowed_cpus() -> Result<Vec<usize>, LabError> {
    system::allowed_cpus().context(|| "sched_getaffinity".into())
}

/// Restricts the calling thread to the given CPUs; an empty list has no effect.
///
/// # Errors
///
/// [`LabError::System`] if this process may use none of them, or for numbers of 1,024 and more.
pub fn pin_this_thread(cpus: &[usize]) -> Result<(), LabError> {
    if cpus.is_empty() {
        return Ok(());
    }
    system::pin_thread(None, cpus).context(|| format!("pinning a thread to CPUs {cpus:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let tick = ticks_to_duration(1);
        let text = "17 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 30 0 0 20 0";
        assert_eq!(CpuTime::from_stat(text), Some(CpuTime { user: tick * 250, system: tick * 30 }));
    }

    #[test]
    fn work_shows_in_the_thread_the_process_and_the_machine() -> Result<(), LabError> {
        let (machine, thread, process) = (
            MachineSample::now()?,
            CpuTime::of_this_thread(),
            CpuTime::of_process(std::process::id())?,
        );
        let start = Instant::now();
        while CpuTime::of_this_thread().total() - thread.total() < Duration::from_millis(60) {
            assert!(start.elapsed() < Duration::from_secs(30), "no CPU time in 30 s of work");
        }
        assert!(
            (CpuTime::of_process(std::process::id())? - process).total()
                >= Duration::from_millis(30)
        );
        assert!(CpuTime::of_this_process().total() >= Duration::from_millis(60));
        let usage = MachineSample::now()?.since(&machine);
        assert!(usage.total.busy() >= 0.03, "{usage:?}");
        assert!((0.0..=1.0).contains(&usage.total.utilisation()));
        assert!(!usage.cpus.is_empty());
        Ok(())
    }

    #[test]
    fn a_pinned_thread_runs_where_it_was_told() -> Result<(), LabError> {
        let cpu = allowed_cpus()?.last().copied().unwrap_or(0);
        std::thread::scope(|scope| {
            let pinned = scope
                .spawn(move || pin_this_thread(&[cpu]).map(|()| rustix::thread::sched_getcpu()));
            pinned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .map(|found| assert_eq!(found, cpu))
    }
}
