//! Request and response over TCP (TCP_RR): each connection sends a request, reads its answer, and
//! sends the next.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::net::{Shutdown, shutdown};

use crate::cpu::{CpuTime, MachineSample, allowed_cpus, pin_this_thread};
use crate::error::{Context, LabError};
use crate::host::Host;
use crate::load::bulk_direction::distribute;
use crate::load::gate::{AbortOnFailure, Gate};
use crate::load::poller::{Poller, StallDetector};
use crate::load::report::TransactionReport;
use crate::load::settings::{Pinning, Route, TcpOptions, at_least_one};
use crate::load::socket::{clients, connections};
use crate::load::transaction_endpoint::{Advance, TransactionEndpoint, compare, corrupted};
use crate::pattern::Pattern;

/// Settings of request-response traffic over TCP, started with [`TcpTransactions::run`].
///
/// Each side spreads its connections over `threads` threads, which serve them by epoll(7). Each
/// connection has one outstanding request.
#[derive(Clone, Debug)]
pub struct TcpTransactions {
    /// Number of connections. Default: 1.
    pub connections: usize,
    /// Number of bytes per request. Default: 1.
    pub request: usize,
    /// Number of bytes per answer. Default: 1.
    pub answer: usize,
    /// Time during which new requests are sent. Default: one second.
    pub time: Duration,
    /// Key of the patterns with which requests and answers are filled and checked; `None` (the
    /// default) checks only their lengths.
    pub verify: Option<u64>,
    /// Options of the TCP sockets. Default: [`TcpOptions::default`] with `TCP_NODELAY`.
    pub options: TcpOptions,
    /// CPUs of each host's threads. Default: any.
    pub pinning: Pinning,
    /// Number of threads per side, at most one per connection. `None` (the default): one per CPU
    /// that the side's threads may use.
    pub threads: Option<usize>,
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
            threads: None,
            stall: Duration::from_secs(10),
        }
    }
}

/// The endpoints that a thread, or all threads of a side, served, and the resulting figures.
#[derive(Default)]
struct TransactionWork {
    endpoints: Vec<TransactionEndpoint>,
    report: TransactionReport,
}

/// The outcome of a thread; `None` if it stopped because another one failed.
type ThreadOutcome = Result<Option<TransactionWork>, LabError>;

impl TcpTransactions {
    /// Connects, exchanges requests and answers, and returns a report.
    ///
    /// # Errors
    ///
    /// [`LabError::Stalled`] if a connection makes no progress for too long,
    /// [`LabError::Corrupted`] if received and sent bytes differ, [`LabError::Invalid`] for invalid
    /// settings, and [`LabError::System`] if a connection fails or breaks.
    pub fn run(&self, route: &Route<'_>) -> Result<TransactionReport, LabError> {
        self.check()?;
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for (number, connection) in
            connections(route, self.connections, &self.options)?.into_iter().enumerate()
        {
            let patterns = self.verify.map(|key| {
                let of = |side| Pattern::new(key).stream(side).stream(number as u64);
                (of(0), of(1))
            });
            clients.push(TransactionEndpoint::new(number, connection.client, patterns));
            servers.push(TransactionEndpoint::new(
                number,
                connection.server,
                patterns.map(|(requests, answers)| (answers, requests)),
            ));
        }
        self.exchange(clients, servers)
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
        self.check()?;
        if self.verify.is_some() {
            return Err(LabError::Invalid {
                what: "verify".into(),
                reason: "a server outside the lab does not send the pattern".into(),
            });
        }
        let clients = clients(host, server, self.connections, &self.options)?;
        let endpoint = |(number, socket)| TransactionEndpoint::new(number, socket, None);
        self.exchange(clients.into_iter().enumerate().map(endpoint).collect(), Vec::new())
    }

    fn check(&self) -> Result<(), LabError> {
        at_least_one("connections", self.connections)?;
        at_least_one("request", self.request)?;
        at_least_one("answer", self.answer)?;
        self.threads.map_or(Ok(()), |threads| at_least_one("threads", threads))
    }

    /// Returns the number of threads for a side whose threads may use these CPUs (an empty list
    /// means all).
    fn threads_on(&self, cpus: &[usize]) -> Result<usize, LabError> {
        match self.threads {
            Some(threads) => Ok(threads),
            None if cpus.is_empty() => allowed_cpus().map(|cpus| cpus.len().max(1)),
            None => Ok(cpus.len()),
        }
    }

    /// Runs the threads of both sides. A side without endpoints gets no threads.
    fn exchange(
        &self,
        clients: Vec<TransactionEndpoint>,
        servers: Vec<TransactionEndpoint>,
    ) -> Result<TransactionReport, LabError> {
        let client_threads = self.threads_on(&self.pinning.client)?;
        let server_threads = self.threads_on(&self.pinning.server)?;
        let gate = &Gate::default();
        thread::scope(|scope| {
            let mut guard = AbortOnFailure::new(gate);
            let start = |what: &str| thread::Builder::new().name(format!("lab:{what}"));
            let (mut running_clients, mut running_servers) = (Vec::new(), Vec::new());
            for endpoints in distribute(servers, server_threads) {
                let thread =
                    start("server").spawn_scoped(scope, move || self.serve(gate, endpoints));
                running_servers.push(thread.context(|| "starting a thread".into())?);
            }
            for endpoints in distribute(clients, client_threads) {
                let thread =
                    start("client").spawn_scoped(scope, move || self.run_requests(gate, endpoints));
                running_clients.push(thread.context(|| "starting a thread".into())?);
            }
            let before = MachineSample::now()?;
            gate.open();
            let clients = join_all(running_clients);
            let servers = join_all(running_servers);
            let machine = MachineSample::now()?.since(&before);
            guard.disarm();
            match (clients?, servers?) {
                (Some(mut clients), Some(servers)) => {
                    compare(&clients.endpoints, &servers.endpoints)?;
                    clients.report.add(servers.report);
                    Ok(TransactionReport { machine, ..clients.report })
                }
                // A thread stops early only if another one failed, and that error was returned
                // above.
                _ => Err(LabError::system("TCP_RR", std::io::ErrorKind::Interrupted)),
            }
        })
    }

    /// Runs a thread of the client.
    fn run_requests(&self, gate: &Gate, mut endpoints: Vec<TransactionEndpoint>) -> ThreadOutcome {
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
                let mut advance = endpoint.advance("client", &mut buffer)?;
                let now = Instant::now();
                progress.record(index, now);
                if advance == Advance::Message {
                    report.transactions += 1;
                    report.latency.record(now - endpoint.message_start);
                    report.seconds = (now - start).as_secs_f64();
                    if now >= deadline {
                        poller.remove(&endpoint.socket)?;
                        shutdown(&endpoint.socket, Shutdown::Write).context(|| {
                            format!("TCP_RR: closing connection {}", endpoint.number)
                        })?;
                        endpoint.done = true;
                        left -= 1;
                        continue;
                    }
                    (endpoint.to_write, endpoint.to_read, endpoint.message_start) =
                        (self.request, self.answer, now);
                    advance = endpoint.send_only(&mut buffer)?;
                }
                if advance == Advance::Closed {
                    return Err(corrupted(
                        endpoint.number,
                        "the server closed without an answer".into(),
                    ));
                }
                endpoint.watch(&poller, index, &advance)?;
            }
            progress.check(Instant::now(), |index| {
                let TransactionEndpoint { number, received, done, .. } = endpoints[index];
                (!done).then_some((number, received))
            })?;
            poller.wait(&mut ready)?;
        }
        report.client_threads.push(CpuTime::of_this_thread() - cpu);
        guard.disarm();
        Ok(Some(TransactionWork { endpoints, report }))
    }

    /// Runs a thread of the server.
    fn serve(&self, gate: &Gate, mut endpoints: Vec<TransactionEndpoint>) -> ThreadOutcome {
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
                let mut advance = endpoint.advance("server", &mut buffer)?;
                progress.record(index, Instant::now());
                if advance == Advance::Message {
                    (endpoint.to_write, endpoint.to_read) = (self.answer, self.request);
                    advance = endpoint.send_only(&mut buffer)?;
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
                let TransactionEndpoint { number, received, done, .. } = endpoints[index];
                (!done).then_some((number, received))
            })?;
        }
        let server_threads = vec![CpuTime::of_this_thread() - cpu];
        guard.disarm();
        let report = TransactionReport { server_threads, ..TransactionReport::default() };
        Ok(Some(TransactionWork { endpoints, report }))
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
}

/// Joins the threads of a side and merges their results; returns the first error.
fn join_all(threads: Vec<thread::ScopedJoinHandle<'_, ThreadOutcome>>) -> ThreadOutcome {
    let outcomes = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    // All threads are joined, so that an error is found behind a thread that it stopped.
    let outcomes: Vec<ThreadOutcome> = outcomes.collect();
    let works: Vec<Option<TransactionWork>> = outcomes.into_iter().collect::<Result<_, _>>()?;
    let works: Option<Vec<TransactionWork>> = works.into_iter().collect();
    Ok(works.map(|works| {
        let mut all = TransactionWork::default();
        for work in works {
            all.endpoints.extend(work.endpoints);
            all.report.add(work.report);
        }
        all.endpoints.sort_by_key(|endpoint| endpoint.number);
        all
    }))
}
