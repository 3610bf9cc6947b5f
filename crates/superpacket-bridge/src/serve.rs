//! A thread that answers short questions over stream sockets, bounded in everything: connections,
//! bytes, time.
//!
//! One thread serves all connections without ever waiting for one of them: a client that sends
//! slowly, reads slowly or says nothing costs its place until its time is over or somebody else
//! needs it, and nothing else. When all places are taken, the connection that has been idle longest
//! gives way to a new one. The control socket and the metrics are protocols over it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use crate::stoppable::Stoppable;

/// What is spoken.
pub(crate) trait Protocol: Send + 'static {
    /// What somebody is told who is not served; `None` serves the peer of this connection.
    fn refusal(&self, peer: BorrowedFd<'_>) -> Option<Vec<u8>>;

    /// The answer to the first question among the bytes received; `ended` if no more will come.
    fn answer(&mut self, received: &[u8], ended: bool) -> Answer;

    /// What somebody is told for whom it ends without an answer.
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
    /// The connection is somebody else's from here on: the server forgets it.
    HandOver(HandOver),
}

/// Takes a connection over.
pub(crate) type HandOver = Box<dyn FnOnce(OwnedFd) -> io::Result<()> + Send>;

/// Why a connection ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// All places were taken, this connection was idle longest, and a new one came.
    Crowded,
    /// The question is too long.
    TooLong,
    /// It did not come in time.
    Late,
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
    pub(crate) fn start(name: &str, listener: OwnedFd, bounds: Bounds, counts: Arc<Counts>, protocol: impl Protocol) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let shared = counts.clone();
        let serve = move |wake| {
            let (connections, scratch) = (Vec::new(), vec![0; 4096]);
            Work { listener, wake, bounds, counts: shared, protocol, connections, accept_after: None, scratch }.run();
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
}

impl Connection {
    /// Is there more of an answer to send, to a client that took some of it less than `stall` ago?
    fn is_being_answered(&self, now: Instant, stall: Duration) -> bool {
        self.sent < self.outgoing.len() && now.saturating_duration_since(self.active) < stall
    }
}

/// The serving thread's own.
struct Work<P> {
    listener: OwnedFd,
    wake: OwnedFd,
    bounds: Bounds,
    counts: Arc<Counts>,
    protocol: P,
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
            let (stop, incoming, ready) = match self.wait() {
                Ok(found) => found,
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
            self.connections.retain_mut(|connection| {
                let late = connection.deadline <= now;
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

    /// Waits for something to do: (the end, a connection, which connections are ready).
    fn wait(&self) -> io::Result<(bool, bool, Vec<bool>)> {
        let now = Instant::now();
        let accepting = self.accept_after.is_none_or(|after| after <= now);
        let mut fds = Vec::with_capacity(self.connections.len() + 2);
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        fds.push(PollFd::new(&self.listener, if accepting { PollFlags::IN } else { PollFlags::empty() }));
        fds.extend(self.connections.iter().map(|connection| {
            // Nothing new is read before the last answer is on its way: that bounds what is kept.
            let wants = if connection.sent < connection.outgoing.len() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.socket, wants)
        }));
        let next = self.connections.iter().map(|connection| connection.deadline).chain(self.accept_after.filter(|_| !accepting)).min();
        let timeout = next.map(|next| {
            let left = next.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos() as _ }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, false, vec![false; self.connections.len()])),
            Err(error) => return Err(error.into()),
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok((ready(&fds[0]), accepting && ready(&fds[1]), fds[2..].iter().map(ready).collect()))
    }

    fn accept(&mut self, now: Instant) {
        self.accept_after = None;
        // Bounded, so that a flood of connections does not keep the others waiting.
        for _ in 0..64 {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
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
                match send(&connection.socket, &connection.outgoing[connection.sent..], SendFlags::NOSIGNAL) {
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
            match self.protocol.answer(&connection.received, connection.ended) {
                Answer::Reply { consumed, text, close } if consumed <= self.bounds.question => {
                    count(&self.counts.answered);
                    connection.received.drain(..consumed);
                    connection.outgoing = text;
                    connection.last = close;
                }
                Answer::HandOver(take) => {
                    count(&self.counts.answered);
                    // Its own place among the connections is free again.
                    if let Err(error) = connection.socket.try_clone().and_then(take) {
                        tracing::warn!(%error, "a connection cannot be handed over: it ends");
                    }
                    return false;
                }
                Answer::Incomplete if connection.ended => return false,
                Answer::Incomplete if connection.received.len() < self.bounds.question => return true,
                Answer::Reply { .. } | Answer::Incomplete => {
                    count(&self.counts.too_long);
                    connection.outgoing = self.protocol.complaint(Complaint::TooLong);
                    connection.last = true;
                }
            }
        }
    }
}

/// Says something to somebody who is not listened to any more, if there is room for it.
fn last_word(socket: &OwnedFd, text: &[u8]) {
    let _ = send(socket, text, SendFlags::NOSIGNAL);
}
