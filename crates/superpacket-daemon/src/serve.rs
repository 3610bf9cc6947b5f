//! A server that answers short requests over stream sockets, with limits on connections, bytes and
//! time. The control socket and the metrics server are both implementations of its
//! [`ServerProtocol`].
//!
//! One thread serves all connections and never blocks on one of them. A slow or silent client only
//! occupies one of the allowed connections, until its deadline or until a new client needs the
//! connection. When all are occupied, a new connection replaces the one that has been idle longest.
//! Answers that take long are computed one after the other on a second thread. If the computation
//! of an answer panics, its client receives an error and the others are still served.
//!
//! The server is written without a library because library servers need an asynchronous runtime,
//! and because the limits above are its purpose.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use superpacket_port::system::{StoppableThread, panic_message};

/// The protocol of a server: how requests are parsed and answered, and which clients are refused.
pub(crate) trait ServerProtocol: Send + 'static {
    /// Returns the message for a client that may not use the server; `None` if it may. `peer` is
    /// the socket of its connection.
    fn refusal(&self, peer: BorrowedFd<'_>) -> Option<Vec<u8>>;

    /// Answers the first request in `received`, the bytes from a client that have not been consumed
    /// yet. `ended` is true if the client has closed its sending side.
    fn answer(&mut self, received: &[u8], ended: bool) -> Answer;

    /// Returns the message for a client whose request is not answered, or whose connection the
    /// server closes.
    fn rejection(&self, rejection: Rejection) -> Vec<u8>;
}

/// What a server is to do with the first request in the received bytes.
pub(crate) enum Answer {
    /// The request is not complete; more bytes are needed.
    Incomplete,
    /// The first `consumed` bytes are a request that was answered at once.
    Reply {
        /// Length of the request in bytes.
        consumed: usize,
        /// The message to send to the client.
        text: Vec<u8>,
        /// Whether the connection is to be closed after the answer.
        close: bool,
    },
    /// The first `consumed` bytes are a request whose answer may take long to compute.
    Later {
        /// Length of the request in bytes.
        consumed: usize,
        /// Computes the answer. It is called on the second thread of the server.
        work: Box<dyn FnOnce() -> Found + Send>,
    },
}

/// The result of a request that was performed on the second thread.
pub(crate) enum Found {
    /// A message to send to the client.
    Reply(Vec<u8>),
    /// A function that takes over the client's connection from the server.
    HandOver(HandOver),
}

/// A function that takes over the socket of a client's connection.
pub(crate) type HandOver = Box<dyn FnOnce(OwnedFd) -> io::Result<()> + Send>;

/// The reason why a request is not answered, or why the server closes a connection.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The maximum number of connections was reached, a new client came, and this connection had
    /// been idle longest.
    TooManyConnections,
    /// The request is longer than [`Bounds::question`].
    TooLong,
    /// Before the deadline, the client did not send a complete request, or did not read the answer.
    Late,
    /// The queue of requests for the second thread is full: it has [`Bounds::connections`] entries.
    QueueFull,
    /// The operating system could not start the second thread, which computes answers that take
    /// long.
    NoThread(io::Error),
    /// The code that computes the answer panicked; this is its message.
    Panicked(String),
}

/// Runs `work` and converts a panic to [`Rejection::Panicked`], so that the calling thread can go
/// on.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Rejection> {
    // The bridge takes its locks even if they are poisoned. So a state that the panic left half
    // changed is no worse than if the panic had ended the thread.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic_message(panic.as_ref()).unwrap_or("without a message").to_owned();
        tracing::error!(message, "an answer panicked");
        Rejection::Panicked(message)
    })
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of connections at a time.
    pub(crate) connections: usize,
    /// Maximum length of a request in bytes.
    pub(crate) question: usize,
    /// Maximum time that a client may take from the end of one answer until it has sent the next
    /// request and read its answer.
    pub(crate) patience: Duration,
    /// Time after which a client that reads nothing of its answer can lose its connection to a new
    /// client.
    pub(crate) stall: Duration,
}

/// Counts of a server's connections and requests.
#[derive(Debug, Default)]
pub(crate) struct ServerCounts {
    /// Number of connections that were accepted.
    pub(crate) accepted: AtomicU64,
    /// Number of connections that were closed because the client may not use the server.
    pub(crate) refused: AtomicU64,
    /// Number of connections that were closed to make room for a new one.
    pub(crate) crowded: AtomicU64,
    /// Number of requests that were too long.
    pub(crate) too_long: AtomicU64,
    /// Number of connections that were closed at their deadline.
    pub(crate) late: AtomicU64,
    /// Number of requests that were answered.
    pub(crate) answered: AtomicU64,
}

/// A running server, which stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    _thread: StoppableThread,
}

impl Server {
    /// Starts a thread that serves the connections to `listener`, which becomes non-blocking, and
    /// counts what it does in `counts`.
    ///
    /// # Errors
    /// The error of the operating system if it cannot provide a thread or a descriptor.
    pub(crate) fn start(
        name: &str,
        listener: OwnedFd,
        bounds: Bounds,
        counts: Arc<ServerCounts>,
        protocol: impl ServerProtocol,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let background = Background::new(name, bounds.connections)?;
        let serve = move |wake| {
            let (connections, scratch) = (Vec::new(), vec![0; 4096]);
            ServerLoop {
                listener,
                wake,
                bounds,
                counts,
                protocol,
                background,
                connections,
                accept_after: None,
                scratch,
            }
            .run();
        };
        Ok(Server { _thread: StoppableThread::start(name, serve)? })
    }
}

/// The connection of a client.
#[derive(Debug)]
struct ClientConnection {
    socket: OwnedFd,
    received: Vec<u8>,
    /// Bytes of answers to this client; the first `sent` of them have been sent.
    outgoing: Vec<u8>,
    sent: usize,
    deadline: Instant,
    /// Time at which a byte was last read from or written to the socket; before that, the time at
    /// which the connection was accepted.
    active: Instant,
    /// Whether the client has closed its sending side.
    ended: bool,
    /// Whether the connection is to be closed when `outgoing` has been sent.
    last: bool,
    /// Number of the client's request whose answer the second thread computes; `None` if there is
    /// none. Until the answer is ready, the socket is not read and the deadline does not apply.
    awaits: Option<u64>,
}

impl ClientConnection {
    /// Returns whether an answer is being computed, or is being sent to a client that has read some
    /// of it within the time `stall`.
    fn is_being_answered(&self, now: Instant, stall: Duration) -> bool {
        self.awaits.is_some()
            || self.sent < self.outgoing.len() && now.saturating_duration_since(self.active) < stall
    }
}

/// The state of the thread that serves all connections.
struct ServerLoop<P> {
    listener: OwnedFd,
    wake: OwnedFd,
    bounds: Bounds,
    counts: Arc<ServerCounts>,
    protocol: P,
    background: Background,
    connections: Vec<ClientConnection>,
    /// Time before which no connection is accepted, because the process had no file descriptor
    /// left. Until then the listener is not polled, since `poll` would return at once again and
    /// again.
    accept_after: Option<Instant>,
    scratch: Vec<u8>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<P: ServerProtocol> ServerLoop<P> {
    fn run(&mut self) {
        loop {
            let WakeEvents { stop, answers, incoming, ready } = match self.wait() {
                Ok(woken) => woken,
                Err(error) => {
                    tracing::error!(%error, "poll failed: no more is served");
                    return;
                }
            };
            if stop {
                return;
            }
            let now = Instant::now();
            // In reverse order, so that `swap_remove` only moves connections that have been served
            // in this loop.
            for index in (0..ready.len()).rev() {
                if ready[index] && !self.step(index, now) {
                    self.connections.swap_remove(index);
                }
            }
            if answers {
                self.deliver_answers(now);
            }
            self.connections.retain_mut(|connection| {
                let late = connection.deadline <= now && connection.awaits.is_none();
                if late {
                    count(&self.counts.late);
                    // A message after part of an answer would make the answer unreadable.
                    if connection.sent == connection.outgoing.len() {
                        send_final(&connection.socket, &self.protocol.rejection(Rejection::Late));
                    }
                }
                !late
            });
            if incoming {
                self.accept(now);
            }
        }
    }

    /// Waits until a socket is ready, an answer is computed, a deadline passes or the server must
    /// stop, and returns which of these happened.
    fn wait(&self) -> io::Result<WakeEvents> {
        let now = Instant::now();
        let accepting = self.accept_after.is_none_or(|after| after <= now);
        let mut fds = Vec::with_capacity(self.connections.len() + 3);
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        fds.push(PollFd::new(&*self.background.has_answers, PollFlags::IN));
        fds.push(PollFd::new(
            &self.listener,
            if accepting { PollFlags::IN } else { PollFlags::empty() },
        ));
        // Connections whose answer is being computed are left out: if the client has closed one,
        // `poll` would always return at once.
        let may_go_on = |connection: &&ClientConnection| connection.awaits.is_none();
        fds.extend(self.connections.iter().filter(may_go_on).map(|connection| {
            // The next question is read only after the last answer has been sent. This bounds the
            // memory per connection.
            let wants = if connection.sent < connection.outgoing.len() {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            PollFd::new(&connection.socket, wants)
        }));
        let deadlines =
            self.connections.iter().filter(may_go_on).map(|connection| connection.deadline);
        let next = deadlines.chain(self.accept_after.filter(|_| !accepting)).min();
        let timeout = next.map(|next| {
            let left = next.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as _ }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => {
                return Ok(WakeEvents {
                    stop: false,
                    answers: false,
                    incoming: false,
                    ready: Vec::new(),
                });
            }
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let mut polled = fds[3..].iter().map(ready);
        Ok(WakeEvents {
            stop: ready(&fds[0]),
            answers: ready(&fds[1]),
            incoming: accepting && ready(&fds[2]),
            ready: self
                .connections
                .iter()
                .map(|connection| may_go_on(&connection) && polled.next() == Some(true))
                .collect(),
        })
    }

    /// Gives the computed answers to the connections that still wait for them.
    fn deliver_answers(&mut self, now: Instant) {
        let mut counter = [0; 8];
        // An error only means that the counter was zero already.
        let _ = rustix::io::read(&*self.background.has_answers, &mut counter);
        while let Ok((number, found)) = self.background.answers.try_recv() {
            let Some(index) =
                self.connections.iter().position(|connection| connection.awaits == Some(number))
            else {
                continue;
            };
            let connection = &mut self.connections[index];
            connection.awaits = None;
            connection.active = Instant::now();
            count(&self.counts.answered);
            let goes_on = match found {
                Ok(Found::Reply(text)) => {
                    connection.outgoing = text;
                    self.step(index, now)
                }
                Ok(Found::HandOver(take)) => {
                    // This connection is taken over, so another client can use its room.
                    if let Ok(Err(error)) =
                        catch_panic(|| connection.socket.try_clone().and_then(take))
                    {
                        tracing::warn!(%error, "a connection cannot be handed over: it ends");
                    }
                    false
                }
                Err(rejection) => {
                    connection.outgoing = self.protocol.rejection(rejection);
                    self.step(index, now)
                }
            };
            if !goes_on {
                self.connections.swap_remove(index);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        self.accept_after = None;
        // At most 64 connections are accepted per call, so that a flood does not delay the existing
        // ones.
        for _ in 0..64 {
            let socket =
                match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(socket) => socket,
                    Err(Errno::AGAIN) => return,
                    // The client has closed the connection already.
                    Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => continue,
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        self.accept_after = Some(now + Duration::from_secs(1));
                        return;
                    }
                };
            count(&self.counts.accepted);
            if let Some(refusal) = self.protocol.refusal(socket.as_fd()) {
                count(&self.counts.refused);
                send_final(&socket, &refusal);
            } else {
                self.make_room(now);
                self.connections.push(ClientConnection {
                    socket,
                    received: Vec::new(),
                    outgoing: Vec::new(),
                    sent: 0,
                    deadline: now + self.bounds.patience,
                    active: Instant::now(),
                    ended: false,
                    last: false,
                    awaits: None,
                });
            }
        }
    }

    /// Closes connections that have been idle longest until there is room for a new one.
    fn make_room(&mut self, now: Instant) {
        if self.connections.len() < self.bounds.connections {
            return;
        }
        // Clients may have sent questions or closed their connections since the last `poll`. Such
        // questions are answered before a connection is closed.
        for index in (0..self.connections.len()).rev() {
            if !self.step(index, now) {
                self.connections.swap_remove(index);
            }
        }
        while self.connections.len() >= self.bounds.connections {
            let now = Instant::now();
            let idlest = (0..self.connections.len()).min_by_key(|&index| {
                let connection = &self.connections[index];
                (connection.is_being_answered(now, self.bounds.stall), connection.active)
            });
            let Some(index) = idlest else { return };
            let connection = self.connections.swap_remove(index);
            count(&self.counts.crowded);
            // A message after part of an answer would make the answer unreadable.
            if connection.sent == connection.outgoing.len() {
                send_final(
                    &connection.socket,
                    &self.protocol.rejection(Rejection::TooManyConnections),
                );
            }
        }
    }

    /// Reads requests from a connection, performs them and sends the answers, as far as possible
    /// without blocking. Returns `false` if the connection is to be closed.
    fn step(&mut self, index: usize, now: Instant) -> bool {
        let connection = &mut self.connections[index];
        if connection.awaits.is_some() {
            return true;
        }
        if connection.sent == connection.outgoing.len() && !connection.ended {
            match recv(&connection.socket, &mut self.scratch[..], RecvFlags::empty()) {
                Ok((_, 0)) => connection.ended = true,
                Ok((_, length)) => {
                    connection.received.extend_from_slice(&self.scratch[..length]);
                    connection.active = Instant::now();
                }
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        // Several questions may have come at once. Each answer is sent before the next question is
        // parsed.
        loop {
            while connection.sent < connection.outgoing.len() {
                match send(
                    &connection.socket,
                    &connection.outgoing[connection.sent..],
                    SendFlags::NOSIGNAL,
                ) {
                    Ok(length) => {
                        connection.sent += length;
                        connection.active = Instant::now();
                    }
                    Err(Errno::AGAIN) => return true,
                    Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
            if !connection.outgoing.is_empty() {
                connection.deadline = now + self.bounds.patience;
            }
            connection.outgoing.clear();
            connection.sent = 0;
            if connection.last {
                return false;
            }
            let answer = match catch_panic(|| {
                self.protocol.answer(&connection.received, connection.ended)
            }) {
                Ok(answer) => answer,
                // It is unknown where the next question begins, so the connection is closed.
                Err(rejection) => {
                    connection.outgoing = self.protocol.rejection(rejection);
                    connection.last = true;
                    continue;
                }
            };
            match answer {
                Answer::Reply { consumed, text, close } if consumed <= self.bounds.question => {
                    count(&self.counts.answered);
                    connection.received.drain(..consumed);
                    connection.outgoing = text;
                    connection.last = close;
                }
                Answer::Later { consumed, work } if consumed <= self.bounds.question => {
                    connection.received.drain(..consumed);
                    match self.background.begin(work) {
                        Ok(number) => {
                            connection.awaits = Some(number);
                            return true;
                        }
                        Err(rejection) => connection.outgoing = self.protocol.rejection(rejection),
                    }
                }
                Answer::Incomplete if connection.ended => return false,
                Answer::Incomplete if connection.received.len() < self.bounds.question => {
                    return true;
                }
                Answer::Reply { .. } | Answer::Later { .. } | Answer::Incomplete => {
                    count(&self.counts.too_long);
                    connection.outgoing = self.protocol.rejection(Rejection::TooLong);
                    connection.last = true;
                }
            }
        }
    }
}

/// The events for which the server's main thread has been woken.
struct WakeEvents {
    /// Whether the server must stop.
    stop: bool,
    /// Whether the second thread has computed answers.
    answers: bool,
    /// Whether a client waits to be accepted.
    incoming: bool,
    /// For each connection, whether its socket can be read or written.
    ready: Vec<bool>,
}

/// The number of a request, and the function that computes its answer.
type Job = (u64, Box<dyn FnOnce() -> Found + Send>);

/// The number of a request, and its answer or the reason why there is none.
type NumberedResult = (u64, Result<Found, Rejection>);

/// The second thread of a server, which computes answers that take long. It is started when the
/// first such request arrives.
struct Background {
    name: String,
    job_sender: Option<Sender<Job>>,
    jobs: Receiver<Job>,
    answer_sender: Sender<NumberedResult>,
    answers: Receiver<NumberedResult>,
    /// A descriptor that is readable when there are computed answers.
    has_answers: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    next: u64,
}

impl Background {
    /// Creates a queue for at most `most` requests, without starting the thread.
    fn new(name: &str, most: usize) -> io::Result<Self> {
        let (job_sender, jobs) = crossbeam_channel::bounded(most);
        let (answer_sender, answers) = crossbeam_channel::unbounded();
        Ok(Background {
            name: format!("{name}-slow"),
            job_sender: Some(job_sender),
            jobs,
            answer_sender,
            answers,
            has_answers: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            thread: None,
            next: 0,
        })
    }

    /// Queues a request for the second thread, and returns the request's number.
    ///
    /// # Errors
    /// [`Rejection::QueueFull`] if the queue is full; [`Rejection::NoThread`] if the thread cannot
    /// be started.
    fn begin(&mut self, work: Box<dyn FnOnce() -> Found + Send>) -> Result<u64, Rejection> {
        if self.thread.is_none() {
            let (jobs, answers, has_answers) =
                (self.jobs.clone(), self.answer_sender.clone(), Arc::clone(&self.has_answers));
            let find = move || {
                for (number, work) in jobs {
                    let _ = answers.send((number, catch_panic(work)));
                    // The write fails only if the counter is full, and then the descriptor is
                    // readable anyway.
                    let _ = rustix::io::write(&*has_answers, &1_u64.to_ne_bytes());
                }
            };
            match std::thread::Builder::new().name(self.name.clone()).spawn(find) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::error!(%error, "no thread can be started for what takes long");
                    return Err(Rejection::NoThread(error));
                }
            }
        }
        let number = self.next;
        let sent =
            self.job_sender.as_ref().is_some_and(|jobs| jobs.try_send((number, work)).is_ok());
        self.next += 1;
        if sent { Ok(number) } else { Err(Rejection::QueueFull) }
    }
}

impl Drop for Background {
    /// Waits until the answer in progress is computed, and discards the requests that are still
    /// queued.
    fn drop(&mut self) {
        self.job_sender = None;
        while self.jobs.try_recv().is_ok() {}
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(name = self.name, "a thread had panicked");
        }
    }
}

/// Sends a message on a connection that is about to be closed. Does nothing if the socket has no
/// room for it.
fn send_final(socket: &OwnedFd, text: &[u8]) {
    let _ = send(socket, text, SendFlags::NOSIGNAL);
}
