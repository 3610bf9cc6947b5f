//! TCP_RR: on each of many connections, a request, its answer, the next request.

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
use crate::load::poller::{Poller, Progress};
use crate::load::report::TransactionReport;
use crate::load::settings::{Pinning, Route, TcpOptions, at_least_one};
use crate::load::socket::{clients, connections};
use crate::pattern::{Checker, Pattern, Producer};

/// Requests and answers over TCP. Set what differs from the default, and [`TcpTransactions::run`].
///
/// One thread on each side serves all connections by epoll(7). Each connection has one request
/// under way.
#[derive(Clone, Debug)]
pub struct TcpTransactions {
    /// Connections. Default 1.
    pub connections: usize,
    /// Bytes of a request. Default 1.
    pub request: usize,
    /// Bytes of an answer. Default 1.
    pub answer: usize,
    /// For how long new requests are made. Default: one second.
    pub time: Duration,
    /// Key of the patterns that requests and answers are made of and checked against, byte for
    /// byte; `None` (the default) checks only their lengths.
    pub verify: Option<u64>,
    /// Socket options. Default: as [`TcpOptions::default`], with `TCP_NODELAY`.
    pub options: TcpOptions,
    /// CPUs of each host's thread. Default: left to the scheduler.
    pub pinning: Pinning,
    /// How long a connection may wait. Default 10 s.
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

/// One side of a connection: it reads a message of one length and writes one of another, in turn.
struct Talker {
    socket: OwnedFd,
    /// Still to be read of the message that is coming; 0 while writing.
    to_read: usize,
    /// Still to be written of the message that is going; 0 while reading.
    to_write: usize,
    /// Whether the socket was full, so that the poller watches for room.
    blocked: bool,
    sent: u64,
    received: u64,
    check: Option<(Producer, Checker, Pattern)>,
    since: Instant,
    done: bool,
}

/// What a call to [`Talker::advance`] came to.
#[derive(PartialEq, Eq)]
enum Advance {
    /// A whole message was read.
    Message,
    /// Waiting for bytes.
    Reading,
    /// Waiting for room.
    Writing,
    /// The other side has closed between two messages.
    Closed,
}

/// Where a thread's transactions went wrong.
enum Fault {
    System(Errno),
    /// Bytes that are not those sent; an end within a message.
    Corrupted(String),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl Talker {
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
            since: Instant::now(),
            done: false,
        }
    }

    /// Writes what is to be written, then reads what is to be read, as far as the socket goes.
    fn advance(&mut self, buffer: &mut [u8]) -> Result<Advance, Fault> {
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
                    return Err(Fault::Corrupted(format!(
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
                            return Err(Fault::Corrupted(format!(
                                "byte {offset} is not the one sent"
                            )));
                        }
                    }
                    self.received += length as u64;
                    self.to_read -= length;
                    // Not read on at once: most messages come whole, and another call would only
                    // say that there is no more.
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

    /// Has the poller watch for what the last call to [`Talker::advance`] waits for.
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
    /// Connects, runs, and reports.
    ///
    /// # Errors
    ///
    /// [`LabError::Stalled`] where a connection waited too long, [`LabError::Corrupted`] where
    /// messages arrive that were not sent, [`LabError::Invalid`] for settings that make no sense,
    /// [`LabError::System`] where a connection cannot be made or breaks.
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
            clients.push(Talker::new(connection.client, patterns));
            servers.push(Talker::new(
                connection.server,
                patterns.map(|(requests, answers)| (answers, requests)),
            ));
        }
        let gate = Gate::default();
        thread::scope(|scope| {
            let mut guard = AbortOnFailure(&gate, false);
            let start = |what: &str| thread::Builder::new().name(format!("lab:{what}"));
            let server = start("server")
                .spawn_scoped(scope, || self.serve(&gate, servers))
                .context(|| "starting a thread".into())?;
            let client = start("client")
                .spawn_scoped(scope, || self.ask(&gate, clients))
                .context(|| "starting a thread".into())?;
            let before = MachineSample::now()?;
            gate.open();
            let client = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let server = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let machine = MachineSample::now()?.since(&before);
            guard.1 = true;
            match (client?, server?) {
                (Some((mut report, clients)), Some((cpu, servers))) => {
                    compare(&clients, &servers)?;
                    report.server = cpu;
                    report.machine = machine;
                    Ok(report)
                }
                // A thread ends early only where the other returns an error, which has been given
                // above.
                _ => Err(LabError::system("TCP_RR", std::io::ErrorKind::Interrupted)),
            }
        })
    }

    /// Connects to a server that is none of the lab's (a user-space stack, another machine), runs,
    /// and reports; the server's CPU time is not known.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); [`LabError::Invalid`] where bytes are to be verified: only
    /// [`run`](Self::run) has a server that makes the pattern.
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
                reason: "the server at the other end makes no pattern".into(),
            });
        }
        let talkers = clients(host, server, self.connections, &self.options)?
            .into_iter()
            .map(|socket| Talker::new(socket, None))
            .collect();
        let gate = Gate::default();
        thread::scope(|scope| {
            let client = thread::Builder::new().name("lab:client".into());
            let client = client
                .spawn_scoped(scope, || self.ask(&gate, talkers))
                .context(|| "starting a thread".into())?;
            let before = MachineSample::now()?;
            gate.open();
            let asked = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let machine = MachineSample::now()?.since(&before);
            // Nobody else could have ended it early.
            let (report, _) = asked?
                .ok_or_else(|| LabError::system("TCP_RR", std::io::ErrorKind::Interrupted))?;
            Ok(TransactionReport { machine, ..report })
        })
    }

    /// The client's thread.
    fn ask(
        &self,
        gate: &Gate,
        mut talkers: Vec<Talker>,
    ) -> Result<Option<(TransactionReport, Vec<Talker>)>, LabError> {
        let mut guard = AbortOnFailure(gate, false);
        let (mut poller, mut buffer) = self.prepare(&self.pinning.client, &talkers)?;
        let start = gate.wait();
        let deadline = start + self.time;
        let cpu = CpuTime::of_this_thread();
        let mut report = TransactionReport::default();
        let mut progress = Progress::new("TCP_RR", "client", talkers.len(), self.stall);
        let mut left = talkers.len();
        // The first requests go out unasked.
        let mut ready: Vec<usize> = (0..talkers.len()).collect();
        for talker in &mut talkers {
            (talker.to_write, talker.to_read, talker.since) =
                (self.request, self.answer, Instant::now());
        }
        while left > 0 {
            if gate.is_aborted() {
                return Ok(None);
            }
            for &index in &ready {
                let talker = &mut talkers[index];
                let mut advance = self.advance(talker, index, "client", &mut buffer)?;
                let now = Instant::now();
                progress.moved(index, now);
                if advance == Advance::Message {
                    report.transactions += 1;
                    report.latency.record(now - talker.since);
                    report.seconds = (now - start).as_secs_f64();
                    if now >= deadline {
                        poller.remove(&talker.socket)?;
                        shutdown(&talker.socket, Shutdown::Write)
                            .context(|| format!("TCP_RR: closing connection {index}"))?;
                        talker.done = true;
                        left -= 1;
                        continue;
                    }
                    (talker.to_write, talker.to_read, talker.since) =
                        (self.request, self.answer, now);
                    advance = self.send_only(talker, index, &mut buffer)?;
                }
                if advance == Advance::Closed {
                    return Err(corrupted(index, "the server closed without an answer".into()));
                }
                talker.watch(&poller, index, &advance)?;
            }
            progress.check(Instant::now(), |index| {
                (!talkers[index].done).then(|| (index, talkers[index].received))
            })?;
            poller.wait(&mut ready)?;
        }
        report.client = CpuTime::of_this_thread() - cpu;
        guard.1 = true;
        Ok(Some((report, talkers)))
    }

    /// The server's thread.
    fn serve(
        &self,
        gate: &Gate,
        mut talkers: Vec<Talker>,
    ) -> Result<Option<(CpuTime, Vec<Talker>)>, LabError> {
        let mut guard = AbortOnFailure(gate, false);
        let (mut poller, mut buffer) = self.prepare(&self.pinning.server, &talkers)?;
        gate.wait();
        let cpu = CpuTime::of_this_thread();
        let mut progress = Progress::new("TCP_RR", "server", talkers.len(), self.stall);
        let mut left = talkers.len();
        let mut ready = Vec::new();
        for talker in &mut talkers {
            talker.to_read = self.request;
        }
        while left > 0 {
            if gate.is_aborted() {
                return Ok(None);
            }
            poller.wait(&mut ready)?;
            for &index in &ready {
                let talker = &mut talkers[index];
                let mut advance = self.advance(talker, index, "server", &mut buffer)?;
                progress.moved(index, Instant::now());
                if advance == Advance::Message {
                    (talker.to_write, talker.to_read) = (self.answer, self.request);
                    advance = self.send_only(talker, index, &mut buffer)?;
                }
                if advance == Advance::Closed {
                    poller.remove(&talker.socket)?;
                    talker.done = true;
                    left -= 1;
                    continue;
                }
                talker.watch(&poller, index, &advance)?;
            }
            progress.check(Instant::now(), |index| {
                (!talkers[index].done).then(|| (index, talkers[index].received))
            })?;
        }
        guard.1 = true;
        Ok(Some((CpuTime::of_this_thread() - cpu, talkers)))
    }

    fn prepare(&self, cpus: &[usize], talkers: &[Talker]) -> Result<(Poller, Vec<u8>), LabError> {
        pin_this_thread(cpus)?;
        let poller = Poller::new()?;
        for (index, talker) in talkers.iter().enumerate() {
            poller.add(&talker.socket, index, EventFlags::IN)?;
        }
        Ok((poller, vec![0x55; self.request.max(self.answer).min(1 << 16)]))
    }

    fn advance(
        &self,
        talker: &mut Talker,
        index: usize,
        role: &str,
        buffer: &mut [u8],
    ) -> Result<Advance, LabError> {
        talker.advance(buffer).map_err(|fault| match fault {
            Fault::System(error) => {
                LabError::system(format!("TCP_RR: {role} of connection {index}"), error)
            }
            Fault::Corrupted(detail) => corrupted(index, format!("{role}: {detail}")),
        })
    }

    /// Sends the message due. The answer cannot be there yet, so it is not asked for.
    fn send_only(
        &self,
        talker: &mut Talker,
        index: usize,
        buffer: &mut [u8],
    ) -> Result<Advance, LabError> {
        let to_read = std::mem::take(&mut talker.to_read);
        let sent = self.advance(talker, index, "sender", buffer);
        talker.to_read = to_read;
        Ok(if sent? == Advance::Writing { Advance::Writing } else { Advance::Reading })
    }
}

/// Both sides must have seen the same bytes each way.
fn compare(clients: &[Talker], servers: &[Talker]) -> Result<(), LabError> {
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
