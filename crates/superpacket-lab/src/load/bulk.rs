//! Bulk transfers over TCP in parallel flows, in one or both directions (TCP_STREAM, TCP_SENDFILE).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu::{CpuTime, MachineSample, pin_this_thread};
use crate::error::{Context, LabError};
use crate::load::bulk_direction::{
    BulkDirection, RunningBulkDirection, ThreadOutcome, ThreadWork, distribute,
};
use crate::load::flow::{BulkFlow, Content, Expected, Receive, ReceiveFlow, SendFlow, Step};
use crate::load::gate::{AbortOnFailure, Gate};
use crate::load::poller::{Poller, StallDetector};
use crate::load::report::BulkReport;
use crate::load::settings::{Pinning, Route, TcpOptions, Until, at_least_one};
use crate::load::socket::{ConnectedSockets, connections};
use crate::load::source::Source;
use crate::pattern::{Checker, Pattern, Producer};

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server (TCP_STREAM).
    Forward,
    /// From the server to the client (TCP_MAERTS).
    Reverse,
    /// Bidirectional, on separate connections.
    Both,
    /// Bidirectional on the same connections, so that data carries acknowledgements.
    Duplex,
}

/// Settings of a bulk transfer over TCP, started with [`TcpBulk::run`].
///
/// For each direction, each side serves its flows with `threads` threads, by epoll(7).
#[derive(Clone, Debug)]
pub struct TcpBulk {
    /// Number of connections per direction. Default: 1.
    pub flows: usize,
    /// When the transfer ends. Default: after one second.
    pub until: Until,
    /// Direction of the payload. Default: forward.
    pub direction: Direction,
    /// Source of the payload. Default: memory.
    pub source: Source,
    /// Bytes per receive call, and per send call from memory. Default: 131,072.
    pub message: usize,
    /// Whether the receiver copies or discards the bytes. Default: copy.
    pub receive: Receive,
    /// Whether the receiver checks every byte and a hash of all bytes of each flow. The value is
    /// the key that the payload is generated from; if the payload comes from a file, any value
    /// enables the check. `None` (the default): only the number of bytes is checked.
    pub verify: Option<u64>,
    /// Options of the TCP sockets.
    pub options: TcpOptions,
    /// CPUs of the client's and the server's threads. Default: any.
    pub pinning: Pinning,
    /// Number of threads that send, and of threads that receive, per direction. Default: 1.
    pub threads: usize,
    /// Longest time for which a flow may make no progress. Default: 10 s.
    pub stall: Duration,
    /// Counter of received bytes of all flows, updated during the run. Default: none.
    pub meter: Option<Arc<AtomicU64>>,
}

impl Default for TcpBulk {
    fn default() -> Self {
        Self {
            flows: 1,
            until: Until::Time(Duration::from_secs(1)),
            direction: Direction::Forward,
            source: Source::Memory,
            message: 1 << 17,
            receive: Receive::Copy,
            verify: None,
            options: TcpOptions::default(),
            pinning: Pinning::default(),
            threads: 1,
            stall: Duration::from_secs(10),
            meter: None,
        }
    }
}

impl TcpBulk {
    /// Connects the flows, transfers the payload, compares sent and received bytes, and returns a
    /// report.
    ///
    /// # Errors
    ///
    /// [`LabError::Stalled`] if a flow makes no progress for too long, [`LabError::Corrupted`] if
    /// received and sent bytes differ, [`LabError::Invalid`] for invalid settings, and
    /// [`LabError::System`] if a connection fails or breaks.
    pub fn run(&self, route: &Route<'_>) -> Result<BulkReport, LabError> {
        self.check()?;
        let (forward, reverse) = self.directions(route)?;
        let gate = Gate::default();
        thread::scope(|scope| {
            // If a thread cannot be started, the threads already waiting at the gate must end.
            let mut guard = AbortOnFailure::new(&gate);
            let forward =
                forward.map(|direction| self.start(scope, &gate, direction)).transpose()?;
            let reverse =
                reverse.map(|direction| self.start(scope, &gate, direction)).transpose()?;
            let before = MachineSample::now()?;
            gate.open();
            let forward = forward.map(|direction| direction.finish()).transpose();
            let reverse = reverse.map(|direction| direction.finish()).transpose();
            let machine = MachineSample::now()?.since(&before);
            guard.disarm();
            Ok(BulkReport { forward: forward?.flatten(), reverse: reverse?.flatten(), machine })
        })
    }

    fn check(&self) -> Result<(), LabError> {
        at_least_one("flows", self.flows)?;
        at_least_one("message", self.message)?;
        at_least_one("threads", self.threads)?;
        if self.verify.is_some() && self.receive == Receive::Discard {
            return Err(LabError::Invalid {
                what: "Receive::Discard".into(),
                reason: "discarded bytes cannot be verified".into(),
            });
        }
        Ok(())
    }

    /// Connects the flows, and assigns the two sockets of each connection to the directions, as
    /// senders and receivers.
    fn directions(
        &self,
        route: &Route<'_>,
    ) -> Result<(Option<BulkDirection<'_>>, Option<BulkDirection<'_>>), LabError> {
        let connect = || connections(route, self.flows, &self.options);
        let (client, server) = (self.pinning.client.as_slice(), self.pinning.server.as_slice());
        let direction = |name: &str,
                         senders: Vec<_>,
                         receivers: Vec<_>,
                         sender_cpus,
                         receiver_cpus| BulkDirection {
            name: format!(
                "{} {name}",
                if matches!(self.source, Source::Memory) { "TCP_STREAM" } else { "TCP_SENDFILE" }
            ),
            sender_cpus,
            receiver_cpus,
            senders: senders
                .into_iter()
                .enumerate()
                .map(|(number, socket)| self.send_flow(name, number, socket))
                .collect(),
            receivers: receivers
                .into_iter()
                .enumerate()
                .map(|(number, socket)| self.receive_flow(name, number, socket))
                .collect(),
        };
        let forward = |clients, servers| direction("forward", clients, servers, client, server);
        let reverse = |clients, servers| direction("reverse", servers, clients, server, client);
        let ends = |connections: Vec<ConnectedSockets>| -> (Vec<_>, Vec<_>) {
            connections.into_iter().map(|connection| (connection.client, connection.server)).unzip()
        };
        Ok(match self.direction {
            Direction::Forward => {
                let (clients, servers) = ends(connect()?);
                (Some(forward(clients, servers)), None)
            }
            Direction::Reverse => {
                let (clients, servers) = ends(connect()?);
                (None, Some(reverse(clients, servers)))
            }
            Direction::Both => {
                let ((clients, servers), (more_clients, more_servers)) =
                    (ends(connect()?), ends(connect()?));
                (Some(forward(clients, servers)), Some(reverse(more_clients, more_servers)))
            }
            Direction::Duplex => {
                let (clients, servers) = ends(connect()?);
                let copy = |sockets: &[OwnedFd]| -> Result<Vec<_>, LabError> {
                    sockets
                        .iter()
                        .map(|socket| socket.try_clone().context(|| "duplicating a socket".into()))
                        .collect()
                };
                let (more_clients, more_servers) = (copy(&clients)?, copy(&servers)?);
                (Some(forward(clients, servers)), Some(reverse(more_clients, more_servers)))
            }
        })
    }

    fn pattern(&self, key: u64, direction: &str, flow: usize) -> Pattern {
        Pattern::new(key).stream(u64::from(direction == "reverse")).stream(flow as u64)
    }

    fn send_flow(&self, direction: &str, number: usize, socket: OwnedFd) -> SendFlow {
        let content = match (&self.source, self.verify) {
            (Source::File(file), _) => Content::File(Arc::clone(file)),
            (Source::Memory, Some(key)) => {
                Content::Checked(Box::new(Producer::new(self.pattern(key, direction, number))))
            }
            (Source::Memory, None) => Content::Any,
        };
        let limit = match self.until {
            Until::Bytes(bytes) => bytes,
            Until::Time(_) => u64::MAX,
        };
        SendFlow { number, socket, sent: 0, limit, content, done: false }
    }

    fn receive_flow(&self, direction: &str, number: usize, socket: OwnedFd) -> ReceiveFlow {
        let checker = self.verify.map(|key| {
            let expected = match &self.source {
                Source::File(file) => Expected::File(Arc::clone(file)),
                Source::Memory => Expected::Pattern(self.pattern(key, direction, number)),
            };
            (Checker::new(), expected)
        });
        let quick_acknowledgements = self.options.quick_acknowledgements;
        ReceiveFlow {
            number,
            socket,
            received: 0,
            seconds: 0.0,
            checker,
            quick_acknowledgements,
            done: false,
        }
    }

    fn start<'scope, 'load>(
        &'load self,
        scope: &'scope thread::Scope<'scope, '_>,
        gate: &'load Gate,
        direction: BulkDirection<'load>,
    ) -> Result<RunningBulkDirection<'scope>, LabError>
    where
        'load: 'scope,
    {
        let mut running = RunningBulkDirection {
            name: direction.name.clone(),
            senders: Vec::new(),
            receivers: Vec::new(),
        };
        for flows in distribute(direction.receivers, self.threads) {
            let (name, cpus) = (direction.name.clone(), direction.receiver_cpus);
            let thread = thread::Builder::new()
                .name("lab:receive".into())
                .spawn_scoped(scope, move || self.move_bytes(gate, &name, cpus, flows));
            running.receivers.push(thread.context(|| "starting a thread".into())?);
        }
        for flows in distribute(direction.senders, self.threads) {
            let (name, cpus) = (direction.name.clone(), direction.sender_cpus);
            let thread = thread::Builder::new()
                .name("lab:send".into())
                .spawn_scoped(scope, move || self.move_bytes(gate, &name, cpus, flows));
            running.senders.push(thread.context(|| "starting a thread".into())?);
        }
        Ok(running)
    }

    /// Sends or receives the bytes of these flows on the calling thread.
    fn move_bytes<Flow: BulkFlow>(
        &self,
        gate: &Gate,
        name: &str,
        cpus: &[usize],
        mut flows: Vec<Flow>,
    ) -> ThreadOutcome<Flow> {
        let mut guard = AbortOnFailure::new(gate);
        pin_this_thread(cpus)?;
        let mut poller = Poller::new()?;
        for (index, flow) in flows.iter().enumerate() {
            poller.add(flow.socket(), index, Flow::INTEREST)?;
        }
        let mut buffer = vec![0x55; self.message];
        let start = gate.wait();
        let deadline = match self.until {
            Until::Time(time) if Flow::SENDS => Some(start + time),
            _ => None,
        };
        let cpu = CpuTime::of_this_thread();
        let (mut left, mut calls) = (flows.len(), 0);
        let role = if Flow::SENDS { "sender" } else { "receiver" };
        let mut progress = StallDetector::new(name, role, flows.len(), self.stall);
        let broken = |flow: &Flow, error| {
            let what =
                format!("{name}: {role} of flow {} after {} bytes", flow.number(), flow.bytes());
            LabError::system(what, error)
        };
        let mut ready = Vec::new();
        while left > 0 {
            if gate.is_aborted() {
                return Ok(None);
            }
            poller.wait(&mut ready)?;
            for &index in &ready {
                let flow = &mut flows[index];
                // Bounded, so that a flow with a fast other side does not starve the others.
                for _ in 0..16 {
                    match flow
                        .step(&mut buffer, self.receive)
                        .map_err(|error| broken(flow, error))?
                    {
                        Step::Moved(length) => {
                            calls += 1;
                            if Flow::SENDS {
                                continue;
                            }
                            if let Some(meter) = &self.meter {
                                meter.fetch_add(length as u64, Ordering::Relaxed);
                            }
                            // A short read has emptied the socket; another call would return
                            // nothing.
                            if length < buffer.len() {
                                break;
                            }
                        }
                        Step::Blocked => break,
                        Step::Finished => {
                            poller.remove(flow.socket())?;
                            flow.finish(start).map_err(|error| broken(flow, error))?;
                            left -= 1;
                            break;
                        }
                    }
                }
                progress.record(index, Instant::now());
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                for flow in flows.iter_mut().filter(|flow| !flow.is_done()) {
                    flow.finish(start).map_err(|error| broken(flow, error))?;
                }
                break;
            }
            progress.check(now, |index| {
                let flow = &flows[index];
                (!flow.is_done()).then(|| (flow.number(), flow.bytes()))
            })?;
        }
        let cpu = CpuTime::of_this_thread() - cpu;
        guard.disarm();
        Ok(Some(ThreadWork { flows, cpu, calls }))
    }
}
