//! A flood of identical frames, to measure how many per second reach the other side.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use superpacket_port::system::Burst;

use crate::cpu::{CpuTime, MachineSample, MachineUsage, pin_this_thread};
use crate::error::LabError;
use crate::link::Link;
use crate::load::per_second;
use crate::raw::{RawOptions, RawSocket};

/// Sends one frame repeatedly with sendmmsg(2), and counts arrivals by the counters of the
/// receiving interface.
#[derive(Clone, Debug)]
pub struct Blast {
    /// The frame. [`Blast::minimal`] makes one of 60 bytes.
    pub frame: Vec<u8>,
    /// Duration of sending. Default: one second.
    pub time: Duration,
    /// Number of frames per system call, 1 to 1,024. Default: 64.
    pub batch: usize,
    /// Numbers of the CPUs on which the sending thread may run. Default: any.
    pub cpus: Vec<usize>,
}

/// The outcome of a [`Blast`].
#[derive(Clone, Debug, Default)]
pub struct BlastReport {
    /// Number of frames that the kernel accepted from the sender.
    pub sent: u64,
    /// Increase of the receiving interface's frame counter.
    pub received: u64,
    /// Duration of sending, in seconds.
    pub seconds: f64,
    /// CPU time of the sending thread.
    pub sender: CpuTime,
    /// Usage of all CPUs during the run.
    pub machine: MachineUsage,
}

impl BlastReport {
    /// Returns frames sent per second.
    #[must_use]
    pub fn sent_per_second(&self) -> f64 {
        per_second(self.sent as f64, self.seconds)
    }

    /// Returns frames received per second of sending.
    #[must_use]
    pub fn received_per_second(&self) -> f64 {
        per_second(self.received as f64, self.seconds)
    }
}

impl Blast {
    /// Returns a blast of the shortest Ethernet frame, 60 bytes without FCS. Its EtherType is one
    /// for experiments (0x88b5, IEEE 802), which receivers ignore.
    #[must_use]
    pub fn minimal(destination: [u8; 6], source: [u8; 6]) -> Self {
        let mut frame = [destination, source].concat();
        frame.extend([0x88, 0xb5]);
        frame.resize(60, 0);
        Self { frame, time: Duration::from_secs(1), batch: 64, cpus: Vec::new() }
    }

    /// Sends frames from interface `from` as fast as possible, and counts those that reach
    /// interface `to`.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a batch outside 1 to 1,024; [`LabError::System`] if the frame is
    /// refused or an interface is gone.
    pub fn run(&self, from: &Link, to: &Link) -> Result<BlastReport, LabError> {
        if self.batch == 0 || self.batch > 1024 {
            return Err(LabError::Invalid {
                what: format!("batch = {}", self.batch),
                reason: "expected 1 to 1,024".into(),
            });
        }
        let socket =
            RawSocket::open(from, RawOptions { promiscuous: false, ..RawOptions::default() })?;
        let before = (MachineSample::now()?, to.statistics()?);
        let mut report = from.host().run(|| self.send(&socket, from))?;
        report.machine = MachineSample::now()?.since(&before.0);
        // Waits for frames in flight, until the counter stands still.
        let mut after = to.statistics()?;
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(10));
            let now = to.statistics()?;
            if now.rx_packets == after.rx_packets {
                break;
            }
            after = now;
        }
        report.received = after.rx_packets.saturating_sub(before.1.rx_packets);
        Ok(report)
    }

    fn send(&self, socket: &RawSocket, from: &Link) -> Result<BlastReport, LabError> {
        pin_this_thread(&self.cpus)?;
        let messages = vec![vec![IoSlice::new(&self.frame)]; self.batch];
        let mut burst = Burst::new(&messages);
        let mut report = BlastReport::default();
        let (start, cpu) = (Instant::now(), CpuTime::of_this_thread());
        while start.elapsed() < self.time {
            match burst.send(socket, 0) {
                Ok(count) => report.sent += count as u64,
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                    ) => {}
                Err(error) => return Err(LabError::system(format!("{from}: blasting"), error)),
            }
        }
        report.seconds = start.elapsed().as_secs_f64();
        report.sender = CpuTime::of_this_thread() - cpu;
        Ok(report)
    }
}
