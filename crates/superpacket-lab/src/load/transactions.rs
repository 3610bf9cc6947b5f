//! Request and response over TCP (TCP_RR): each connection sends a request, reads its answer, and
//! sends the next.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::cpu::{CpuTime, MachineSample, pin_this_thread};
use crate::error::{Context, LabError};
use crate::host::Host;
use crate::load::gate::{AbortOnFailure, Gate};
use crate::load::poller::{Poller, StallDetector};
use crate::load::report::TransactionReport;
use crate::load::settings::{Pinning, Route, TcpOptions, at_least_one};
use crate::load::socket::{clients, connections};
use crate::pattern::{Checker, Pattern, Producer};

/// Settings of request-response traffic over TCP, started with [`TcpTransactions::run`].
///
/// Each side serves all connections with one thread, by epoll(7). Each connection has one
/// outstanding request.
#[derive(Clone, Debug)]
pub struct TcpTransactions {
    /// Number of connections. Default: 1.
    pub connections: usize,
    /// Bytes per request. Default: 1.
    pub request: usize,
    /// Bytes per answer. Default: 1.
    pub answer: usize,
    /// Time during which new requests are sent. Default: one second.
    pub time: Duration,
    /// Key of the patterns with which requests and answers are filled and checked; `None` (the
    /// default) checks only their lengths.
    pub verify: Option<u64>,
    /// Socket options. Default: [`TcpOptions::default`] with `TCP_NODELAY`.
    pub options: TcpOptions,
    /// CPUs of each host's thread. Default: any.
    pub pinning: Pinning,
    /// Longest time for which a connection may make no progress. Default: 10 s.
    pub stall: Duration,
}

impl Default for TcpTransactions {
    fn default() -> Self {
        Self {
            connections: 1,
            request: 1,
            answer: 1,
            time: Duration::from_secs(1),
            verify: None,
            options: TcpOptions { no_delay: true, ..TcpOptions::default() },
            pinning: Pinning::default(),
            stall: Duration::from_secs(10),
        }
    }
}

/// An end of a connection, which alternately reads and writes messages.
struct TransactionEndpoint {
    socket: OwnedFd,
    /// Bytes left to read of the current message; 0 while writing.
    to_read: usize,
    /// Bytes left to write of the current message; 0 while reading.
    to_write: usize,
    /// Whether the socket's buffer was full, so that the poller waits for space.
    blocked: bool,
    sent: u64,
    received: u64,
    check: Option<(Producer, Checker, Pattern)>,
    message_start: Instant,
    done: bool,
}

/// Outcome of a call to [`TransactionEndpoint::advance`].
#[derive(PartialEq, Eq)]
enum Advance {
    /// A complete message was read.
    Message,
    /// Waiting for bytes to read.
    Reading,
    /// Waiting for space in the socket's buffer.
    Writing,
    /// The peer closed the connection between two messages.
    Closed,
}

/// A failure in a thread's transactions.
enum TransactionFault {
    System(Errno),
    /// Received bytes differ from those sent, or the connection ended within a message.
    Corrupted(String),
}

impl From<Errno> for TransactionFault {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl TransactionEndpoint {
    fn new(socket: OwnedFd, patterns: Option<(Pattern, Pattern)>) -> Self {
        let check =
            patterns.map(|(sent, received)| (Producer::new(sent), Checker::new(), received));
        Self {
            socket,
            to_read: 0,
            to_write: 0,
            blocked: false,
            sent: 0,
            received: 0,
            check,
            message_start: Instant::now(),
            done: false,
        }
    }

    /// Writes pending bytes, then reads pending bytes, until the socket would block.
    fn advance(&mut self, buffer: &mut [u8]) -> Result<Advance, TransactionFault> {
        while self.to_write > 0 {
            let piece = self.to_write.min(buffer.len());
            if let Some((producer, ..)) = &self.check {
                producer.prepare(&mut buffer[..piece]);
            }
            match send(&self.socket, &buffer[..piece], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    if let Some((producer, ..)) = &mut self.check {
                        producer.sent(&buffer[..sent]);
                    }
                    self.sent += sent as u64;
                    self.to_write -= sent;
                }
                Err(Errno::AGAIN) => return Ok(Advance::Writing),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let whole = self.to_read;
        while self.to_read > 0 {
            let piece = self.to_read.min(buffer.len());
            match recv(&self.socket, &mut buffer[..piece], RecvFlags::empty()) {
                Ok((_, 0)) if self.to_read == whole => return Ok(Advance::Closed),
                Ok((_, 0)) => {
                    return Err(TransactionFault::Corrupted(format!(
                        "the other side closed {} bytes before a message's end",
                        self.to_read
                    )));
                }
                Ok((_, length)) => {
                    if let Some((_, checker, expected)) = &mut self.check {
                        checker.received(&buffer[..length], |offset, bytes| {
                            expected.first_difference(offset, bytes)
                        });
                        if let Some(offset) = checker.first_difference() {
                            return Err(TransactionFault::Corrupted(format!(
                                "byte {offset} is not the one sent"
                            )));
                        }
                    }
                    self.received += length as u64;
                    self.to_read -= length;
                    // Most messages arrive whole, and after a short read another call would only
                    // return EAGAIN.
                    if self.to_read > 0 && length < piece {
                        return Ok(Advance::Reading);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Advance::Reading),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Advance::Message)
    }

    /// Makes the poller wait for the event that the last [`TransactionEndpoint::advance`] needs.
    fn watch(&mut self, poller: &Poller, index: usize, advance: &Advance) -> Result<(), LabError> {
        let blocked = *advance == Advance::Writing;
        if blocked != self.blocked {
            self.blocked = blocked;
            poller.modify(
                &self.socket,
                index,
                if blocked { EventFlags::OUT } else { EventFlags::IN },
            )?;
        }
        Ok(())
    }

    fn digests(&self) -> Option<(u64, u64)> {
        self.check.as_ref().map(|(producer, checker, _)| (producer.digest(), checker.digest()))
    }
}

impl TcpTransactions {
    /// Connects, exchanges messages, and reports.
    ///
    /// # Errors
    ///
    /// [`LabError::Stalled`] if a connection makes no progress for too long,
    /// [`LabError::Corrupted`] if received and sent bytes differ, [`LabError::Invalid`] for invalid
    /// settings, and [`LabError::System`] if a connection fails or breaks.
    pub fn run(&self, route: &Route<'_>) -> Result<TransactionReport, LabError> {
        at_least_one("connections", self.connections)?;
        at_least_one("request", self.request)?;
        at_least_one("answer", self.answer)?;
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for (number, connection) in
            connections(route, self.connections, &self.options)?.into_iter().enumerate()
        {
            let patterns = self.verify.map(|key| {
                let of = |side| Pattern::new(key).stream(side).stream(number as u64);
                (of(0), of(1))
            });
            clients.push(TransactionEndpoint::new(connection.client, patterns));
            servers.push(TransactionEndpoint::new(
                connection.server,
                patterns.map(|(requests, answers)| (answers, requests)),
            ));
        }
        let gate = Gate::default();
        thread::scope(|scope| {
            let mut guard = AbortOnFailure::new(&gate);
            let start = |what: &str| thread::Builder::new().name(format!("lab:{what}"));
            let server = start("server")
                .spawn_scoped(scope, || self.serve(&gate, servers))
                .context(|| "starting a thread".into())?;
            let client = start("client")
                .spawn_scoped(scope, || self.run_requests(&gate, clients))
                .context(|| "starting a thread".into())?;
            let before = MachineSample::now()?;
            gate.open();
            let client = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let server = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let machine = MachineSample::now()?.since(&before);
            guard.disarm();
            match (client?, server?) {
                (Some((mut report, clients)), Some((cpu, servers))) => {
                    compare(&clients, &servers)?;
                    report.server = cpu;
                    report.machine = machine;
                    Ok(report)
                }
                // A thread stops early only if the other one failed, and that error was returned
                // above.
                _ => Err(LabError::system("TCP_RR", std::io::ErrorKind::Interrupted)),
            }
        })
    }

    /// Runs the client against a server outside the lab, such as a user-space stack or another
    /// machine. The report lacks the server's CPU time.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run). [`LabError::Invalid`] if bytes are to be verified, because only
    /// the server of [`run`](Self::run) sends the pattern.
    pub fn run_client(
        &self,
        host: &Host,
        server: SocketAddr,
    ) -> Result<TransactionReport, LabError> {
        at_least_one("connections", self.connections)?;
        at_least_one("request", self.request)?;
        at_least_one("answer", self.answer)?;
        if self.verify.is_some() {
            return Err(LabError::Invalid {
                what: "verify".into(),
                reason: "a server outside the lab does not send the pattern".into(),
            });
        }
        let endpoints = clients(host, server, self.connections, &self.options)?
            .into_iter()
            .map(|socket| TransactionEndpoint::new(socket, None))
            .collect();
        let gate = Gate::default();
        thread::scope(|scope| {
            let client = thread::Builder::new().name("lab:client".into());
            let client = client
                .spawn_scoped(scope, || self.run_requests(&gate, endpoints))
                .context(|| "starting a thread".into())?;
            let before = MachineSample::now()?;
            gate.open();
            let outcome = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let machine = MachineSample::now()?.since(&before);
            // No other thread can abort the load.
            let (report, _) = outcome?
                .ok_or_else(|| LabError::system("TCP_RR", std::io::ErrorKind::Interrupted))?;
            Ok(TransactionReport { machine, ..report })
        })
    }

    /// Runs the client's thread.
    fn run_requests(
        &self,
        gate: &Gate,
        mut endpoints: Vec<TransactionEndpoint>,
    ) -> Result<Option<(TransactionReport, Vec<TransactionEndpoint>)>, LabError> {
        let mut guard = AbortOnFailure::new(gate);
        let (mut poller, mut buffer) = self.prepare(&self.pinning.client, &endpoints)?;
        let start = gate.wait();
        let deadline = start + self.time;
        let cpu = CpuTime::of_this_thread();
        let mut report = TransactionReport::default();
        let mut progress = StallDetector::new("TCP_RR", "client", endpoints.len(), self.stall);
        let mut left = endpoints.len();
        // Each connection starts with a request.
        let mut ready: Vec<usize> = (0..endpoints.len()).collect();
        for endpoint in &mut endpoints {
            (endpoint.to_write, endpoint.to_read, endpoint.message_start) =
                (self.request, self.answer, Instant::now());
        }
        while left > 0 {
            if gate.is_aborted() {
                return Ok(None);
            }
            for &index in &ready {
                let endpoint = &mut endpoints[index];
                let mut advance = self.advance(endpoint, index, "client", &mut buffer)?;
                let now = Instant::now();
                progress.record(index, now);
                if advance == Advance::Message {
                    report.transactions += 1;
                    report.latency.record(now - endpoint.message_start);
                    report.seconds = (now - start).as_secs_f64();
                    if now >= deadline {
                        poller.remove(&endpoint.socket)?;
                        shutdown(&endpoint.socket, Shutdown::Write)
                            .context(|| format!("TCP_RR: closing connection {index}"))?;
                        endpoint.done = true;
                        left -= 1;
                        continue;
                    }
                    (endpoint.to_write, endpoint.to_read, endpoint.message_start) =
                        (self.request, self.answer, now);
                    advance = self.send_only(endpoint, index, &mut buffer)?;
                }
                if advance == Advance::Closed {
                    return Err(corrupted(index, "the server closed without an answer".into()));
                }
                endpoint.watch(&poller, index, &advance)?;
            }
            progress.check(Instant::now(), |index| {
                (!endpoints[index].done).then(|| (index, endpoints[index].received))
            })?;
            poller.wait(&mut ready)?;
        }
        report.client = CpuTime::of_this_thread() - cpu;
        guard.disarm();
        Ok(Some((report, endpoints)))
    }

    /// Runs the server's thread.
    fn serve(
        &self,
        gate: &Gate,
        mut endpoints: Vec<TransactionEndpoint>,
    ) -> Result<Option<(CpuTime, Vec<TransactionEndpoint>)>, LabError> {
        let mut guard = AbortOnFailure::new(gate);
        let (mut poller, mut buffer) = self.prepare(&self.pinning.server, &endpoints)?;
        gate.wait();
        let cpu = CpuTime::of_this_thread();
        let mut progress = StallDetector::new("TCP_RR", "server", endpoints.len(), self.stall);
        let mut left = endpoints.len();
        let mut ready = Vec::new();
        for endpoint in &mut endpoints {
            endpoint.to_read = self.request;
        }
        while left > 0 {
            if gate.is_aborted() {
                return Ok(None);
            }
            poller.wait(&mut ready)?;
            for &index in &ready {
                let endpoint = &mut endpoints[index];
                let mut advance = self.advance(endpoint, index, "server", &mut buffer)?;
                progress.record(index, Instant::now());
                if advance == Advance::Message {
                    (endpoint.to_write, endpoint.to_read) = (self.answer, self.request);
                    advance = self.send_only(endpoint, index, &mut buffer)?;
                }
                if advance == Advance::Closed {
                    poller.remove(&endpoint.socket)?;
                    endpoint.done = true;
                    left -= 1;
                    continue;
                }
                endpoint.watch(&poller, index, &advance)?;
            }
            progress.check(Instant::now(), |index| {
                (!endpoints[index].done).then(|| (index, endpoints[index].received))
            })?;
        }
        guard.disarm();
        Ok(Some((CpuTime::of_this_thread() - cpu, endpoints)))
    }

    fn prepare(
        &self,
        cpus: &[usize],
        endpoints: &[TransactionEndpoint],
    ) -> Result<(Poller, Vec<u8>), LabError> {
        pin_this_thread(cpus)?;
        let poller = Poller::new()?;
        for (index, endpoint) in endpoints.iter().enumerate() {
            poller.add(&endpoint.socket, index, EventFlags::IN)?;
        }
        Ok((poller, vec![0x55; self.request.max(self.answer).min(1 << 16)]))
    }

    fn advance(
        &self,
        endpoint: &mut TransactionEndpoint,
        index: usize,
        role: &str,
        buffer: &mut [u8],
    ) -> Result<Advance, LabError> {
        endpoint.advance(buffer).map_err(|fault| match fault {
            TransactionFault::System(error) => {
                LabError::system(format!("TCP_RR: {role} of connection {index}"), error)
            }
            TransactionFault::Corrupted(detail) => corrupted(index, format!("{role}: {detail}")),
        })
    }

    /// Sends the pending message. Does not read, because the answer cannot have arrived yet.
    fn send_only(
        &self,
        endpoint: &mut TransactionEndpoint,
        index: usize,
        buffer: &mut [u8],
    ) -> Result<Advance, LabError> {
        let to_read = std::mem::take(&mut endpoint.to_read);
        let sent = self.advance(endpoint, index, "sender", buffer);
        endpoint.to_read = to_read;
        Ok(if sent? == Advance::Writing { Advance::Writing } else { Advance::Reading })
    }
}

/// Checks that both sides saw the same bytes in each direction.
fn compare(
    clients: &[TransactionEndpoint],
    servers: &[TransactionEndpoint],
) -> Result<(), LabError> {
    for (index, (client, server)) in clients.iter().zip(servers).enumerate() {
        if (client.sent, client.received) != (server.received, server.sent) {
            let detail = format!(
                "client sent {} and received {} bytes, server received {} and sent {}",
                client.sent, client.received, server.received, server.sent
            );
            return Err(corrupted(index, detail));
        }
        if client.digests() != server.digests().map(|(sent, received)| (received, sent)) {
            return Err(corrupted(index, "the sums of both sides differ".into()));
        }
    }
    Ok(())
}

fn corrupted(flow: usize, detail: String) -> LabError {
    LabError::Corrupted { load: "TCP_RR".into(), flow, detail }
}
