//! A single direction of a bulk transfer: its flows and threads, and the comparison of both sides.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::thread;

use superpacket_port::system::tcp_info;

use crate::cpu::CpuTime;
use crate::error::{Context, LabError};
use crate::load::flow::{BulkFlow, ReceiveFlow, SendFlow};
use crate::load::report::{DirectionReport, FlowReport};
use crate::pattern::Checker;

/// A direction of a transfer, connected but not started.
pub(crate) struct BulkDirection<'load> {
    pub(crate) name: String,
    pub(crate) sender_cpus: &'load [usize],
    pub(crate) receiver_cpus: &'load [usize],
    pub(crate) senders: Vec<SendFlow>,
    pub(crate) receivers: Vec<ReceiveFlow>,
}

/// The result of a thread: its flows, its CPU time, and its number of calls that moved bytes.
pub(crate) struct ThreadWork<Flow> {
    pub(crate) flows: Vec<Flow>,
    pub(crate) cpu: CpuTime,
    pub(crate) calls: u64,
}

/// The outcome of a thread; `Ok(None)` if it stopped because another one failed.
pub(crate) type ThreadOutcome<Flow> = Result<Option<ThreadWork<Flow>>, LabError>;

/// A direction of a transfer whose threads are running.
pub(crate) struct RunningBulkDirection<'scope> {
    pub(crate) name: String,
    pub(crate) senders: Vec<thread::ScopedJoinHandle<'scope, ThreadOutcome<SendFlow>>>,
    pub(crate) receivers: Vec<thread::ScopedJoinHandle<'scope, ThreadOutcome<ReceiveFlow>>>,
}

impl RunningBulkDirection<'_> {
    /// Waits for the threads, and compares sent with received bytes; `None` if a thread stopped
    /// because another one failed.
    pub(crate) fn finish(self) -> Result<Option<DirectionReport>, LabError> {
        let (senders, receivers) = (join_all(self.senders), join_all(self.receivers));
        let (Some(senders), Some(receivers)) = (senders?, receivers?) else { return Ok(None) };
        let mut report = DirectionReport {
            sender: senders.cpu,
            receiver: receivers.cpu,
            send_calls: senders.calls,
            receive_calls: receivers.calls,
            ..DirectionReport::default()
        };
        for (sender, receiver) in senders.flows.iter().zip(&receivers.flows) {
            let digest = compare(&self.name, sender, receiver)?;
            let info =
                TcpInfo::of(&sender.socket).context(|| format!("{}: TCP_INFO", self.name))?;
            report.bytes += receiver.received;
            report.seconds = report.seconds.max(receiver.seconds);
            report.flows.push(FlowReport {
                bytes: receiver.received,
                seconds: receiver.seconds,
                digest,
                retransmitted_segments: info.retransmitted_segments,
                segment_size: info.segment_size,
            });
        }
        Ok(Some(report))
    }
}

/// Values from the kernel's `struct tcp_info`.
struct TcpInfo {
    retransmitted_segments: u32,
    segment_size: u32,
}

impl TcpInfo {
    fn of(socket: impl AsFd) -> io::Result<TcpInfo> {
        const WORDS: usize = size_of::<libc::tcp_info>() / 4;
        // `struct tcp_info` consists of eight bytes, then 32-bit words.
        let words: [u32; WORDS] = tcp_info(socket)?;
        Ok(TcpInfo {
            retransmitted_segments: words[offset_of!(libc::tcp_info, tcpi_total_retrans) / 4],
            segment_size: words[offset_of!(libc::tcp_info, tcpi_snd_mss) / 4],
        })
    }
}

/// Compares the sent with the received bytes of a flow, and returns their hash if verification is
/// enabled.
fn compare(load: &str, sender: &SendFlow, receiver: &ReceiveFlow) -> Result<Option<u64>, LabError> {
    let corrupted =
        |detail| LabError::Corrupted { load: load.to_owned(), flow: sender.number, detail };
    let checker = receiver.checker.as_ref().map(|(checker, _)| checker);
    if let Some(offset) = checker.and_then(Checker::first_difference) {
        return Err(corrupted(format!("byte {offset} is not the one sent")));
    }
    if sender.sent != receiver.received {
        return Err(corrupted(format!(
            "{} bytes sent, {} received",
            sender.sent, receiver.received
        )));
    }
    let Some(checker) = checker else { return Ok(None) };
    let (sent, received) = (sender.digest()?, checker.digest());
    if sent.is_some_and(|sent| sent != received) {
        return Err(corrupted(format!(
            "XXH3 of what was sent is {sent:x?}, of what was received {received:x}"
        )));
    }
    Ok(Some(received))
}

/// Joins all threads and merges their results; returns the first error.
fn join_all<Flow: BulkFlow>(
    threads: Vec<thread::ScopedJoinHandle<'_, ThreadOutcome<Flow>>>,
) -> ThreadOutcome<Flow> {
    let mut all = ThreadWork { flows: Vec::new(), cpu: CpuTime::default(), calls: 0 };
    let (mut failure, mut complete) = (None, true);
    for thread in threads {
        match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(Some(work)) => {
                all.flows.extend(work.flows);
                all.cpu += work.cpu;
                all.calls += work.calls;
            }
            Ok(None) => complete = false,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    all.flows.sort_by_key(BulkFlow::number);
    match failure {
        Some(error) => Err(error),
        None => Ok(complete.then_some(all)),
    }
}

/// Distributes flows round robin to at most `threads` threads.
pub(crate) fn distribute<Flow>(flows: Vec<Flow>, threads: usize) -> Vec<Vec<Flow>> {
    let threads = threads.min(flows.len());
    let mut groups: Vec<Vec<Flow>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, flow) in flows.into_iter().enumerate() {
        groups[index % threads].push(flow);
    }
    groups
}
