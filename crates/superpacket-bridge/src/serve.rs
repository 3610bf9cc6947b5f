//! A thread that answers short questions over stream sockets, bounded in everything: connections,
//! bytes, time.
//!
//! One thread serves all connections without ever waiting for one of them: a client that sends
//! slowly, reads slowly or says nothing costs its place until its time is over or somebody else
//! needs it, and nothing else. When all places are taken, the connection that has been idle longest
//! gives way to a new one. What takes long to answer is worked out on a second thread, one question
//! after the other, while the first goes on to serve. Where finding an answer panics, its client is
//! told so, and the others are served. The control socket and the metrics are protocols over it.
//!
//! By hand, since its bounds are its purpose, and without the asynchronous runtime that a library's
//! server would bring.

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

use crate::error::panic_message;
use crate::stoppable::Stoppable;

/// What is spoken.
pub(crate) trait Protocol: Send + 'static {
    /// What somebody is told who is not served; `None` serves the peer of this connection.
    fn refusal(&self, peer: BorrowedFd<'_>) -> Option<Vec<u8>>;

    /// The answer to the first question among the bytes received; `ended` if no more will come.
    fn answer(&mut self, received: &[u8], ended: bool) -> Answer;

    /// What somebody is told whose question gets no answer.
    fn complaint(&self, complaint: Complaint) -> Vec<u8>;
}

/// What a protocol makes of what was received.
pub(crate) enum Answer {
    /// The question has not ended yet.
    Incomplete,
    /// An answer to the first `consumed` bytes.
    Reply {
        /// How many bytes the question took.
        consumed: usize,
        /// The answer.
        text: Vec<u8>,
        /// The connection ends with it.
        close: bool,
    },
    /// The answer to the first `consumed` bytes may take long to find.
    Later {
        /// How many bytes the question took.
        consumed: usize,
        /// Finds it.
        work: Box<dyn FnOnce() -> Found + Send>,
    },
}

/// What was found after a while.
pub(crate) enum Found {
    /// An answer.
    Reply(Vec<u8>),
    /// The connection is somebody else's from here on: the server forgets it.
    HandOver(HandOver),
}

/// Takes a connection over.
pub(crate) type HandOver = Box<dyn FnOnce(OwnedFd) -> io::Result<()> + Send>;

/// Why a question gets no answer, or a connection ends.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// All places were taken, this connection was idle longest, and a new one came.
    Crowded,
    /// The question is too long.
    TooLong,
    /// It did not come in time.
    Late,
    /// As many questions as there may be connections wait for answers that take long.
    Behind,
    /// The system gives no thread for answers that take long.
    NoThread(io::Error),
    /// What was to find the answer panicked, with this message.
    Panicked(String),
}

/// Does what may panic, on a thread that has others to serve.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Complaint> {
    // What it left half done is behind the bridge's locks, which are taken poisoned too: a thread
    // that ended by the panic would leave the same.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic_message(&*panic).unwrap_or("without a message").to_owned();
        tracing::error!(message, "an answer panicked");
        Complaint::Panicked(message)
    })
}

/// What a server gives to its clients at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at a time.
    pub(crate) connections: usize,
    /// Bytes of a question.
    pub(crate) question: usize,
    /// How long a connection may take from one answer to the next, its own time to read included.
    pub(crate) patience: Duration,
    /// An answer of which the client has taken nothing for so long no longer protects its
    /// connection from giving way.
    pub(crate) stall: Duration,
}

/// What became of connections and questions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Peers that are not served.
    pub(crate) refused: AtomicU64,
    /// Connections that gave way to a new one.
    pub(crate) crowded: AtomicU64,
    /// Questions that were too long.
    pub(crate) too_long: AtomicU64,
    /// Connections whose time was over.
    pub(crate) late: AtomicU64,
    /// Questions answered.
    pub(crate) answered: AtomicU64,
}

/// A running server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    counts: Arc<Counts>,
    _thread: Stoppable,
}

impl Server {
    /// Starts a thread that serves connections to `listener`, which need not be non-blocking.
    ///
    /// # Errors
    /// What the system says if it gives no thread or descriptor.
    pub(crate) fn start(
        name: &str,
        listener: OwnedFd,
        bounds: Bounds,
        counts: Arc<Counts>,
        protocol: impl Protocol,
    ) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let shared = counts.clone();
        let background = Background::new(name, bounds.connections)?;
        let serve = move |wake| {
            let (connections, scratch) = (Vec::new(), vec![0; 4096]);
            Work {
                listener,
                wake,
                bounds,
                counts: shared,
                protocol,
                background,
                connections,
                accept_after: None,
                scratch,
            }
            .run();
        };
        Ok(Server { counts, _thread: Stoppable::start(name, serve)? })
    }

    /// What it counted so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// A client.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
    /// Bytes to send, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    deadline: Instant,
    /// When a byte was last read from or written to it, or else when it was accepted.
    active: Instant,
    /// The client sends no more.
    ended: bool,
    /// Nothing follows what is to be sent.
    last: bool,
    /// The number of its question to which the answer is being found. Until then nothing is read of
    /// it, and its time stands still.
    awaits: Option<u64>,
}

impl Connection {
    /// Is there more of an answer to send, to a client that took some of it less than `stall` ago,
    /// or is it being found?
    fn is_being_answered(&self, now: Instant, stall: Duration) -> bool {
        self.awaits.is_some()
            || self.sent < self.outgoing.len() && now.saturating_duration_since(self.active) < stall
    }
}

/// The serving thread's own.
struct Work<P> {
    listener: OwnedFd,
    wake: OwnedFd,
    bounds: Bounds,
    counts: Arc<Counts>,
    protocol: P,
    background: Background,
    connections: Vec<Connection>,
    /// The system had no descriptor left: the listener is left alone until then, or it would be
    /// ready all the time.
    accept_after: Option<Instant>,
    scratch: Vec<u8>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<P: Protocol> Work<P> {
    fn run(&mut self) {
        loop {
            let Woken { stop, answers, incoming, ready } = match self.wait() {
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
            // From the end, so that what swap_remove puts in a place has had its turn.
            for index in (0..ready.len()).rev() {
                if ready[index] && !self.step(index, now) {
                    self.connections.swap_remove(index);
                }
            }
            if answers {
                self.hand_out(now);
            }
            self.connections.retain_mut(|connection| {
                let late = connection.deadline <= now && connection.awaits.is_none();
                if late {
                    count(&self.counts.late);
                    // Nothing may follow half an answer.
                    if connection.sent == connection.outgoing.len() {
                        last_word(&connection.socket, &self.protocol.complaint(Complaint::Late));
                    }
                }
                !late
            });
            if incoming {
                self.accept(now);
            }
        }
    }

    /// Waits for something to do.
    fn wait(&self) -> io::Result<Woken> {
        let now = Instant::now();
        let accepting = self.accept_after.is_none_or(|after| after <= now);
        let mut fds = Vec::with_capacity(self.connections.len() + 3);
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        fds.push(PollFd::new(&*self.background.has_answers, PollFlags::IN));
        fds.push(PollFd::new(
            &self.listener,
            if accepting { PollFlags::IN } else { PollFlags::empty() },
        ));
        // One that awaits an answer may have gone: it would be ready all the time.
        let may_go_on = |connection: &&Connection| connection.awaits.is_none();
        fds.extend(self.connections.iter().filter(may_go_on).map(|connection| {
            // Nothing new is read before the last answer is on its way: that bounds what is kept.
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
                return Ok(Woken {
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
        Ok(Woken {
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

    /// Gives the answers that have been found to those who await them and are still there.
    fn hand_out(&mut self, now: Instant) {
        let mut counter = [0; 8];
        // Empty is as good: it was read before.
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
                    // Its own place among the connections is free again.
                    if let Ok(Err(error)) =
                        catch_panic(|| connection.socket.try_clone().and_then(take))
                    {
                        tracing::warn!(%error, "a connection cannot be handed over: it ends");
                    }
                    false
                }
                Err(complaint) => {
                    connection.outgoing = self.protocol.complaint(complaint);
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
        // Bounded, so that a flood of connections does not keep the others waiting.
        for _ in 0..64 {
            let socket =
                match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(socket) => socket,
                    Err(Errno::AGAIN) => return,
                    // The client has gone already.
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
                last_word(&socket, &refusal);
            } else {
                self.make_room(now);
                self.connections.push(Connection {
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

    /// Frees a place for a new connection, if none is free.
    fn make_room(&mut self, now: Instant) {
        if self.connections.len() < self.bounds.connections {
            return;
        }
        // Clients may have gone, or asked, since the last look: whoever has asked is answered
        // before anybody gives way.
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
            // Nothing may follow half an answer.
            if connection.sent == connection.outgoing.len() {
                last_word(&connection.socket, &self.protocol.complaint(Complaint::Crowded));
            }
        }
    }

    /// Does for a connection what can be done without waiting; false if it is over.
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
        // As many questions as came at once: each is answered before the next is looked at.
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
                // Nobody knows where the next question begins.
                Err(complaint) => {
                    connection.outgoing = self.protocol.complaint(complaint);
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
                        Err(complaint) => connection.outgoing = self.protocol.complaint(complaint),
                    }
                }
                Answer::Incomplete if connection.ended => return false,
                Answer::Incomplete if connection.received.len() < self.bounds.question => {
                    return true;
                }
                Answer::Reply { .. } | Answer::Later { .. } | Answer::Incomplete => {
                    count(&self.counts.too_long);
                    connection.outgoing = self.protocol.complaint(Complaint::TooLong);
                    connection.last = true;
                }
            }
        }
    }
}

/// Why the serving thread goes on.
struct Woken {
    /// It is to end.
    stop: bool,
    /// Answers that took long are there.
    answers: bool,
    /// Somebody wants a connection.
    incoming: bool,
    /// By connection: can something be done for it?
    ready: Vec<bool>,
}

/// A question that takes long, by its number, and what finds the answer.
type Job = (u64, Box<dyn FnOnce() -> Found + Send>);

/// The number of a question, and what was found, or why nothing was.
type FoundFor = (u64, Result<Found, Complaint>);

/// Finds answers that take long, on a thread of its own from the first such question on.
struct Background {
    name: String,
    job_sender: Option<Sender<Job>>,
    jobs: Receiver<Job>,
    answer_sender: Sender<FoundFor>,
    answers: Receiver<FoundFor>,
    /// Readable when there are answers.
    has_answers: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    next: u64,
}

impl Background {
    /// One that has so many questions waiting at most.
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

    /// Has the answer found; returns the question's number.
    ///
    /// # Errors
    /// [`Complaint::Behind`] if too many wait, or [`Complaint::NoThread`].
    fn begin(&mut self, work: Box<dyn FnOnce() -> Found + Send>) -> Result<u64, Complaint> {
        if self.thread.is_none() {
            let (jobs, answers, has_answers) =
                (self.jobs.clone(), self.answer_sender.clone(), Arc::clone(&self.has_answers));
            let find = move || {
                for (number, work) in jobs {
                    let _ = answers.send((number, catch_panic(work)));
                    // A counter that is full wakes just as well.
                    let _ = rustix::io::write(&*has_answers, &1_u64.to_ne_bytes());
                }
            };
            match std::thread::Builder::new().name(self.name.clone()).spawn(find) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::error!(%error, "no thread can be started for what takes long");
                    return Err(Complaint::NoThread(error));
                }
            }
        }
        let number = self.next;
        let sent =
            self.job_sender.as_ref().is_some_and(|jobs| jobs.try_send((number, work)).is_ok());
        self.next += 1;
        if sent { Ok(number) } else { Err(Complaint::Behind) }
    }
}

impl Drop for Background {
    /// Waits until the answer that is being found is there; those that wait for their turn are not
    /// looked for any more.
    fn drop(&mut self) {
        self.job_sender = None;
        while self.jobs.try_recv().is_ok() {}
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(name = self.name, "a thread had panicked");
        }
    }
}

/// Says something to somebody who is not listened to any more, if there is room for it.
fn last_word(socket: &OwnedFd, text: &[u8]) {
    let _ = send(socket, text, SendFlags::NOSIGNAL);
}
