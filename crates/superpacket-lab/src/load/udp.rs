//! Numbered datagrams (UDP_STREAM), sent singly or in super-packets that the kernel segments
//! (UDP_SEGMENT) and merges (UDP_GRO).

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use superpacket_port::system::{receive_message, set_udp_gro, set_udp_segment};

use crate::cpu::{CpuTime, MachineSample, MachineUsage, pin_this_thread};
use crate::error::{Context, LabError};
use crate::load::gate::{AbortOnFailure, Gate};
use crate::load::poller::Poller;
use crate::load::report::{per_second, service_demand};
use crate::load::settings::{Pinning, Route, at_least_one};
use crate::pattern::Pattern;

/// Length of the datagram number at the start of each payload, little-endian.
const NUMBER: usize = 8;
/// Time without datagrams, after the sender has ended, that ends the receiver.
const QUIET_AFTER_END: Duration = Duration::from_millis(300);

/// Settings of a stream of datagrams from client to server, started with [`UdpBulk::run`].
///
/// Each datagram begins with its number within its flow, which reveals loss, duplicates and
/// reordering.
#[derive(Clone, Debug)]
pub struct UdpBulk {
    /// Number of socket pairs. Default: 1.
    pub flows: usize,
    /// Payload bytes per datagram, at least 8. Default: 1,400.
    pub datagram: usize,
    /// Duration of sending. Default: one second.
    pub time: Duration,
    /// Datagrams per send call, passed to the kernel as one super-packet (`UDP_SEGMENT`). With 1
    /// (the default) each is sent singly. The kernel accepts up to 65,507 bytes, and 64 or 128
    /// datagrams.
    pub segments: usize,
    /// Whether the receiver lets the kernel merge datagrams (`UDP_GRO`). Default: false.
    pub gro: bool,
    /// Datagrams per second over all flows. `None` (the default) sends as fast as the kernel
    /// accepts, which may lose most of them.
    pub datagrams_per_second: Option<f64>,
    /// Key of the pattern with which datagrams are filled and checked; `None` (the default) checks
    /// only their lengths and numbers.
    pub verify: Option<u64>,
    /// `SO_RCVBUF` of the receiver in bytes, limited by the system. Default: 4 MiB.
    pub receive_buffer: usize,
    /// CPUs of each host's thread. Default: any.
    pub pinning: Pinning,
}

impl Default for UdpBulk {
    fn default() -> Self {
        Self {
            flows: 1,
            datagram: 1400,
            time: Duration::from_secs(1),
            segments: 1,
            gro: false,
            datagrams_per_second: None,
            verify: None,
            receive_buffer: 4 << 20,
            pinning: Pinning::default(),
        }
    }
}

/// The result of a [`UdpBulk`].
#[derive(Clone, Debug, Default)]
pub struct UdpReport {
    /// Number of datagrams sent.
    pub sent: u64,
    /// Number of datagrams received, including duplicates.
    pub received: u64,
    /// Number of received datagrams whose number had been received before.
    pub duplicates: u64,
    /// Datagrams received after one with a higher number.
    pub out_of_order: u64,
    /// Number of payload bytes received.
    pub bytes: u64,
    /// Seconds from the start until the last datagram arrived.
    pub seconds: f64,
    /// Number of receive calls that returned data.
    pub receive_calls: u64,
    /// Number of receive calls that returned more than one datagram.
    pub merged_calls: u64,
    /// Maximum number of datagrams per receive call.
    pub most_merged: u64,
    /// CPU time of the sending thread.
    pub sender: CpuTime,
    /// CPU time of the receiving thread.
    pub receiver: CpuTime,
    /// Usage of all CPUs during the run.
    pub machine: MachineUsage,
}

impl UdpReport {
    /// Returns the number of datagrams that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        (self.sent + self.duplicates).saturating_sub(self.received)
    }

    /// Returns the received payload, in 10^9 bits per second.
    #[must_use]
    pub fn gigabits_per_second(&self) -> f64 {
        per_second(self.bytes as f64 * 8.0 / 1e9, self.seconds)
    }

    /// Returns datagrams received per second.
    #[must_use]
    pub fn datagrams_per_second(&self) -> f64 {
        per_second(self.received as f64, self.seconds)
    }

    /// Returns the sending thread's CPU time per received payload, in microseconds per 1,024 bytes.
    #[must_use]
    pub fn sender_service_demand(&self) -> f64 {
        service_demand(self.sender.total(), self.bytes)
    }

    /// Returns the receiving thread's CPU time per received payload, in microseconds per 1,024
    /// bytes.
    #[must_use]
    pub fn receiver_service_demand(&self) -> f64 {
        service_demand(self.receiver.total(), self.bytes)
    }
}

/// The sender's progress, from which the receiver knows when to stop.
#[derive(Default)]
struct SenderState {
    datagrams: AtomicU64,
    ended: AtomicBool,
}

impl UdpBulk {
    /// Sends and receives datagrams, and returns a report. Lost datagrams are counted, and are no
    /// error.
    ///
    /// # Errors
    ///
    /// [`LabError::Corrupted`] if a received datagram was not sent, [`LabError::Invalid`] for
    /// invalid settings, and [`LabError::System`] if a socket cannot be created or used.
    pub fn run(&self, route: &Route<'_>) -> Result<UdpReport, LabError> {
        at_least_one("flows", self.flows)?;
        at_least_one("segments", self.segments)?;
        let bytes = self.datagram * self.segments;
        if self.datagram < NUMBER || bytes > 65_507 {
            let what = format!("{} datagrams of {} bytes", self.segments, self.datagram);
            return Err(LabError::Invalid {
                what,
                reason: "expected at least 8 bytes each, and at most 65,507 together".into(),
            });
        }
        let (senders, receivers) = self.sockets(route)?;
        let (gate, sent) = (Gate::default(), SenderState::default());
        thread::scope(|scope| {
            let mut guard = AbortOnFailure::new(&gate);
            let start = |what: &str| thread::Builder::new().name(format!("lab:{what}"));
            let receiver =
                start("receive").spawn_scoped(scope, || self.receive(&gate, &receivers, &sent));
            let receiver = receiver.context(|| "starting a thread".into())?;
            let sender = start("send").spawn_scoped(scope, || self.send(&gate, &senders, &sent));
            let sender = sender.context(|| "starting a thread".into())?;
            let before = MachineSample::now()?;
            gate.open();
            let sender = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let receiver = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let machine = MachineSample::now()?.since(&before);
            guard.disarm();
            let (cpu, mut report) = (sender?, receiver?);
            report.sender = cpu;
            report.sent = sent.datagrams.load(Ordering::Relaxed);
            report.machine = machine;
            Ok(report)
        })
    }

    /// Creates connected pairs of sockets.
    fn sockets(&self, route: &Route<'_>) -> Result<(Vec<UdpSocket>, Vec<UdpSocket>), LabError> {
        let any: SocketAddr =
            if route.address.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..self.flows {
            let what = |host: &crate::Host| format!("host {}: UDP socket", host.name());
            let receiver = route
                .server
                .run(|| UdpSocket::bind((route.address, 0)).context(|| what(route.server)))?;
            let target = receiver.local_addr().context(|| what(route.server))?;
            let sender = route.client.run(|| -> Result<UdpSocket, LabError> {
                let sender = UdpSocket::bind(any).context(|| what(route.client))?;
                sender.connect(target).context(|| format!("{} to {target}", what(route.client)))?;
                Ok(sender)
            })?;
            if self.segments > 1 {
                set_udp_segment(&sender, u16::try_from(self.datagram).unwrap_or(u16::MAX))
                    .context(|| "UDP_SEGMENT".into())?;
            }
            if self.gro {
                set_udp_gro(&receiver, true).context(|| "UDP_GRO".into())?;
            }
            // Only root may exceed the system's limit; others get at most the limit.
            if rustix::net::sockopt::set_socket_recv_buffer_size_force(
                &receiver,
                self.receive_buffer,
            )
            .is_err()
            {
                rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, self.receive_buffer)
                    .context(|| "SO_RCVBUF".into())?;
            }
            senders.push(sender);
            receivers.push(receiver);
        }
        Ok((senders, receivers))
    }

    fn pattern(&self, flow: usize) -> Option<Pattern> {
        self.verify.map(|key| Pattern::new(key).stream(flow as u64))
    }

    fn send(
        &self,
        gate: &Gate,
        sockets: &[UdpSocket],
        sent: &SenderState,
    ) -> Result<CpuTime, LabError> {
        let mut guard = AbortOnFailure::new(gate);
        pin_this_thread(&self.pinning.client)?;
        let mut numbers = vec![0_u64; sockets.len()];
        let mut buffer = vec![0x55; self.datagram * self.segments];
        let start = gate.wait();
        let cpu = CpuTime::of_this_thread();
        let mut total = 0_u64;
        'load: while start.elapsed() < self.time && !gate.is_aborted() {
            for (flow, socket) in sockets.iter().enumerate() {
                self.fill_datagrams(self.pattern(flow), numbers[flow], &mut buffer);
                loop {
                    match socket.send(&buffer) {
                        Ok(_) => break,
                        Err(error)
                            if matches!(
                                error.raw_os_error(),
                                Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                            ) =>
                        {
                            if start.elapsed() >= self.time || gate.is_aborted() {
                                break 'load;
                            }
                        }
                        Err(error) => {
                            let what = format!(
                                "UDP_STREAM: sending {} datagrams of {} bytes",
                                self.segments, self.datagram
                            );
                            return Err(LabError::system(what, error));
                        }
                    }
                }
                numbers[flow] += self.segments as u64;
                total += self.segments as u64;
                if let Some(rate) = self.datagrams_per_second {
                    let due = Duration::from_secs_f64(total as f64 / rate.max(f64::MIN_POSITIVE))
                        .min(self.time);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                }
            }
        }
        let cpu = CpuTime::of_this_thread() - cpu;
        sent.datagrams.store(total, Ordering::Relaxed);
        sent.ended.store(true, Ordering::Release);
        guard.disarm();
        Ok(cpu)
    }

    /// Fills `buffer` with the datagrams from `number` on.
    fn fill_datagrams(&self, pattern: Option<Pattern>, number: u64, buffer: &mut [u8]) {
        for (datagram, number) in buffer.chunks_exact_mut(self.datagram).zip(number..) {
            if let Some(pattern) = pattern {
                pattern.fill(number * self.datagram as u64, datagram);
            }
            datagram[..NUMBER].copy_from_slice(&number.to_le_bytes());
        }
    }

    fn receive(
        &self,
        gate: &Gate,
        sockets: &[UdpSocket],
        sent: &SenderState,
    ) -> Result<UdpReport, LabError> {
        let mut guard = AbortOnFailure::new(gate);
        pin_this_thread(&self.pinning.server)?;
        let mut poller = Poller::new()?;
        for (flow, socket) in sockets.iter().enumerate() {
            poller.add(socket, flow, EventFlags::IN)?;
        }
        let mut flows: Vec<ReceivedNumbers> =
            (0..sockets.len()).map(|_| ReceivedNumbers::default()).collect();
        let mut buffer = vec![0; 1 << 16];
        let mut ready = Vec::new();
        let mut report = UdpReport::default();
        let start = gate.wait();
        let (cpu, mut last) = (CpuTime::of_this_thread(), start);
        loop {
            let ended = sent.ended.load(Ordering::Acquire);
            let complete = ended
                && report.received - report.duplicates == sent.datagrams.load(Ordering::Relaxed);
            if complete || ended && last.elapsed() > QUIET_AFTER_END || gate.is_aborted() {
                break;
            }
            poller.wait(&mut ready)?;
            for &flow in &ready {
                for _ in 0..64 {
                    let received = match receive_message(
                        &sockets[flow],
                        &mut buffer,
                        libc::SOL_UDP,
                        libc::UDP_GRO,
                    ) {
                        Ok(received) => received,
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                        Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {
                            continue;
                        }
                        Err(error) => return Err(LabError::system("UDP_STREAM: receiving", error)),
                    };
                    // The kernel reports the datagram size only for merged datagrams.
                    let size = received.control.map_or(received.length, |size| {
                        i32::from_ne_bytes([size[0], size[1], size[2], size[3]]) as usize
                    });
                    let mut count = 0;
                    for datagram in buffer[..received.length].chunks(size.max(1)) {
                        self.check_datagram(flow, datagram, &mut flows[flow], &mut report)?;
                        count += 1;
                    }
                    report.receive_calls += 1;
                    report.merged_calls += u64::from(count > 1);
                    report.most_merged = report.most_merged.max(count);
                    last = Instant::now();
                }
            }
        }
        report.seconds = (last - start).as_secs_f64();
        report.receiver = CpuTime::of_this_thread() - cpu;
        guard.disarm();
        Ok(report)
    }

    /// Checks and counts a datagram.
    fn check_datagram(
        &self,
        flow: usize,
        datagram: &[u8],
        seen: &mut ReceivedNumbers,
        report: &mut UdpReport,
    ) -> Result<(), LabError> {
        let corrupted = |detail| LabError::Corrupted { load: "UDP_STREAM".into(), flow, detail };
        if datagram.len() != self.datagram {
            return Err(corrupted(format!(
                "a datagram of {} bytes, {} were sent",
                datagram.len(),
                self.datagram
            )));
        }
        let Some((number, payload)) = datagram.split_first_chunk::<NUMBER>() else {
            return Err(corrupted(format!("a datagram of {} bytes", datagram.len())));
        };
        let number = u64::from_le_bytes(*number);
        if let Some(pattern) = self.pattern(flow) {
            let offset = number.wrapping_mul(self.datagram as u64).wrapping_add(NUMBER as u64);
            if let Some(index) = pattern.first_difference(offset, payload) {
                return Err(corrupted(format!(
                    "byte {} of datagram {number} is not the one sent",
                    index + NUMBER
                )));
            }
        }
        report.received += 1;
        report.bytes += datagram.len() as u64;
        match seen.record(number) {
            DatagramOrder::Next => {}
            DatagramOrder::Late => report.out_of_order += 1,
            DatagramOrder::Again => report.duplicates += 1,
            DatagramOrder::Impossible => {
                return Err(corrupted(format!("datagram {number} was never sent")));
            }
        }
        Ok(())
    }
}

/// The received datagram numbers of a flow: one bit per number.
#[derive(Default)]
struct ReceivedNumbers {
    seen: Vec<u64>,
    next: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum DatagramOrder {
    /// The number is higher than all earlier ones.
    Next,
    /// The datagram was received for the first time, after one with a higher number.
    Late,
    /// A datagram with this number was received before.
    Again,
    /// The number is higher than any load can reach.
    Impossible,
}

impl ReceivedNumbers {
    fn record(&mut self, number: u64) -> DatagramOrder {
        // No sender reaches this number within a day; a larger one must not exhaust the memory.
        if number > 1 << 40 {
            return DatagramOrder::Impossible;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            return DatagramOrder::Again;
        }
        self.seen[word] |= bit;
        if number < self.next {
            return DatagramOrder::Late;
        }
        self.next = number + 1;
        DatagramOrder::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_repetition_are_told_apart() {
        let mut numbers = ReceivedNumbers::default();
        let order: Vec<DatagramOrder> =
            [0, 1, 3, 2, 2, 200, 4, u64::MAX].map(|number| numbers.record(number)).into();
        use DatagramOrder::{Again, Impossible, Late, Next};
        assert_eq!(order, [Next, Next, Next, Late, Again, Next, Late, Impossible]);
    }
}
