//! Queues datagrams, and sends them in runs.

use std::io::{self, IoSlice};
use std::mem;
use std::{fmt, ops};

use crate::{Destination, Transmit};

/// A sender of datagrams: a [`UdpSocket`](crate::UdpSocket), or a replacement in tests.
pub trait SendDatagrams {
    /// Sends one datagram, or a run of datagrams: all of them or none. `scratch` is memory for a
    /// contiguous copy of the contents, if the system needs one.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room now; any other error of the
    /// system.
    fn send(&self, transmit: &Transmit<'_>, scratch: &mut Vec<u8>) -> io::Result<()>;

    /// Returns the maximum number of datagrams that one call can send; 1 if runs are not supported.
    fn max_segments(&self) -> usize;

    /// Waits until there is room to send a datagram.
    ///
    /// # Errors
    /// Any error of the system.
    fn wait_writable(&self) -> io::Result<()>;

    /// Returns whether a datagram of `length` bytes fits the path MTU, so that it is sent in one IP
    /// packet. It is called after a run was refused with an error that has several causes. Returns
    /// `true` if the path MTU is not known.
    fn fits(&self, _destination: &Destination, _length: usize) -> bool {
        true
    }

    /// Handles the refusal of a run of datagrams. Switches runs off if the [cause](Refusal::cause)
    /// is [`RefusalCause::Unsupported`]. Returns whether this is the first refusal with this cause.
    fn refuse(&self, refusal: &Refusal) -> bool;
}

/// The cause for which a run of datagrams was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCause {
    /// The kernel, the socket or the device does not support runs, so runs are switched off.
    Unsupported,
    /// The datagrams of the run exceed the path MTU. Other runs are sent as before.
    TooLong,
}

/// A run of datagrams that was refused, and has been sent one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The cause of the refusal.
    pub cause: RefusalCause,
    /// The destination of the datagrams.
    pub destination: Destination,
    /// Number of datagrams of the run. They have been sent one by one.
    pub datagrams: usize,
    /// Length in bytes of each datagram of the run but the last.
    pub segment_size: usize,
    /// The number of the error (`errno`), if the system gave one.
    pub errno: Option<i32>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { cause, destination, datagrams, segment_size, errno } = self;
        let run =
            format_args!("{datagrams} datagrams of {segment_size} bytes to {}", destination.addr);
        match cause {
            RefusalCause::Unsupported => {
                write!(formatter, "UDP_SEGMENT is switched off: {run} were refused")?
            }
            RefusalCause::TooLong => write!(
                formatter,
                "{run} exceed the path MTU: such runs are sent datagram by datagram"
            )?,
        }
        errno.map_or(Ok(()), |errno| write!(formatter, ": {}", io::Error::from_raw_os_error(errno)))
    }
}

/// A sender of datagrams. Consecutive datagrams with the same destination and length are sent in
/// one call.
///
/// [`push`](Self::push) queues, [`flush`](Self::flush) sends in the order of the pushes. The last
/// datagram of a run may be shorter. A flush drops the buffers that it has sent.
///
/// # Errors
///
/// | error | the datagram | the datagrams behind it |
/// |---|---|---|
/// | [`WouldBlock`](io::ErrorKind::WouldBlock) ([`try_flush`](Self::try_flush) only), `ENOBUFS`, `ENOMEM` | stays | stay, for the next flush |
/// | any other, for a single datagram: too long, no route, not permitted | dropped, counted as [rejected](SenderCounters::rejected) | sent; the flush returns the first such error |
pub struct Sender<S, B> {
    socket: S,
    queue: Vec<(Destination, B)>,
    /// Number of datagrams at the front of the queue that are sent or rejected.
    done: usize,
    /// Indices of the datagrams that are sent one by one, since the run that they formed was
    /// refused.
    one_by_one: ops::Range<usize>,
    /// The refusal of a run, until it is known whether the kernel accepts the datagrams one by one.
    refusal: Option<Refusal>,
    /// The first error of the flush in progress that concerns a single datagram.
    error: Option<io::Error>,
    slices: Vec<IoSlice<'static>>,
    scratch: Vec<u8>,
    counters: SenderCounters,
    notice: Option<RefusalCallback>,
}

/// A callback for refusals.
type RefusalCallback = Box<dyn FnMut(&Refusal) + Send>;

/// Counters of a [`Sender`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SenderCounters {
    /// Number of datagrams that were sent.
    pub datagrams: u64,
    /// Total length in bytes of the datagrams that were sent, without headers.
    pub bytes: u64,
    /// Number of successful system calls, for runs and for single datagrams.
    pub sends: u64,
    /// Number of successful system calls that sent more than one datagram.
    pub runs: u64,
    /// Runs of datagrams that were refused for another cause than the length of the datagrams.
    pub refused: u64,
    /// Runs whose datagrams exceed the path MTU, and were sent one by one.
    pub too_long: u64,
    /// Datagrams sent alone that the system refused, and that were dropped.
    pub rejected: u64,
    /// Number of calls of the system that failed because there was no room.
    pub full: u64,
}

/// Maximum length in bytes of the datagrams of a run together: the longest payload of a UDP
/// datagram over IPv4.
const LONGEST: usize = 65_535 - 20 - 8;

impl<S: SendDatagrams, B: AsRef<[u8]>> Sender<S, B> {
    /// Returns a sender that uses this socket.
    pub fn new(socket: S) -> Self {
        Sender {
            socket,
            queue: Vec::new(),
            done: 0,
            one_by_one: 0..0,
            refusal: None,
            error: None,
            slices: Vec::new(),
            scratch: Vec::new(),
            counters: SenderCounters::default(),
            notice: None,
        }
    }

    /// Queues a datagram.
    #[inline]
    pub fn push(&mut self, destination: impl Into<Destination>, datagram: B) {
        self.queue.push((destination.into(), datagram));
    }

    /// Sends all queued datagrams. Waits while there is no room.
    ///
    /// # Errors
    /// Any error of the system; see [above](Self#errors).
    pub fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_writable()?
                }
                result => return result,
            }
        }
    }

    /// Like [`flush`](Self::flush), but drops the datagrams that could not be sent because of an
    /// error, as a full queue would.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush();
        self.clear();
        result
    }

    /// Like [`flush`](Self::flush), but does not wait.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room: the next call continues. Any
    /// other error of the system; see [above](Self#errors).
    pub fn try_flush(&mut self) -> io::Result<()> {
        while self.done < self.queue.len() {
            let end = if self.one_by_one.contains(&self.done) {
                self.done + 1
            } else {
                // If none of a run's datagrams was accepted, the datagrams were the cause, not the
                // run.
                self.refusal = None;
                self.run_end()
            };
            match self.send_run(self.done..end) {
                Ok(()) => self.count_sent(end),
                Err(error) if is_temporary(&error) => {
                    self.counters.full += 1;
                    return Err(error);
                }
                Err(error) if end - self.done > 1 => self.refuse_run(end, &error),
                Err(error) => {
                    self.counters.rejected += 1;
                    self.done = end;
                    self.error.get_or_insert(error);
                }
            }
        }
        self.queue.clear();
        (self.done, self.one_by_one, self.refusal) = (0, 0..0, None);
        self.error.take().map_or(Ok(()), Err)
    }

    /// Returns the index after the run of datagrams that the next call can send together. The run
    /// starts with the first unsent one.
    #[inline]
    fn run_end(&self) -> usize {
        let most = self.socket.max_segments();
        let Some(((first, datagram), others)) =
            self.queue.get(self.done..).and_then(<[_]>::split_first)
        else {
            return self.done;
        };
        let size = datagram.as_ref().len();
        let (mut end, mut length) = (self.done + 1, size);
        for (destination, datagram) in others.iter().take(most.saturating_sub(1)) {
            let next = datagram.as_ref().len();
            length += next;
            if destination != first || next > size || next == 0 || length > LONGEST {
                break;
            }
            end += 1;
            if next < size {
                break;
            }
        }
        end
    }

    #[inline]
    fn send_run(&mut self, run: ops::Range<usize>) -> io::Result<()> {
        let mut slices = reuse_slices(mem::take(&mut self.slices));
        let datagrams = self.queue.get(run).unwrap_or(&[]);
        slices.extend(datagrams.iter().map(|(_, datagram)| IoSlice::new(datagram.as_ref())));
        let Some((destination, first)) = datagrams.first() else { return Ok(()) };
        let transmit = Transmit {
            destination: destination.addr,
            ecn: destination.ecn,
            contents: &slices,
            segment_size: (datagrams.len() > 1).then(|| first.as_ref().len()),
            src_ip: destination.src_ip,
        };
        let result = self.socket.send(&transmit, &mut self.scratch);
        self.slices = reuse_slices(slices);
        result
    }

    #[inline]
    fn count_sent(&mut self, end: usize) {
        let datagrams = self.queue.get(self.done..end).unwrap_or(&[]);
        self.counters.datagrams += datagrams.len() as u64;
        self.counters.bytes +=
            datagrams.iter().map(|(_, datagram)| datagram.as_ref().len() as u64).sum::<u64>();
        self.counters.sends += 1;
        self.counters.runs += u64::from(datagrams.len() > 1);
        self.done = end;
        // The last datagram of a run may be accepted because it is short. Only one that is as long
        // as the others proves that the run was the cause.
        if let Some(refusal) = self.refusal.take_if(|refusal| {
            datagrams.first().is_some_and(|(_, first)| first.as_ref().len() == refusal.segment_size)
        }) {
            self.report(&refusal);
        }
    }

    /// Handles the error of a run of datagrams, which are then sent one by one.
    #[cold]
    fn refuse_run(&mut self, end: usize, error: &io::Error) {
        self.one_by_one = self.done..end;
        let Some((destination, first)) = self.queue.get(self.done) else { return };
        let (datagrams, segment_size) = (end - self.done, first.as_ref().len());
        // Linux before 6.14 also returns EINVAL if datagrams are too long (`udp_send_skb`).
        let is_offload = may_concern_runs(error);
        let cause = match is_too_long(error)
            || is_offload && !self.socket.fits(destination, segment_size)
        {
            true => RefusalCause::TooLong,
            false if is_offload => RefusalCause::Unsupported,
            false => return,
        };
        let refusal = Refusal {
            cause,
            destination: *destination,
            datagrams,
            segment_size,
            errno: error.raw_os_error(),
        };
        match cause {
            RefusalCause::Unsupported => {
                self.counters.refused += 1;
                self.refusal = Some(refusal);
            }
            RefusalCause::TooLong => {
                self.counters.too_long += 1;
                self.report(&refusal);
            }
        }
    }

    #[cold]
    fn report(&mut self, refusal: &Refusal) {
        let is_news = self.socket.refuse(refusal);
        if let (true, Some(notice)) = (is_news, &mut self.notice) {
            notice(refusal);
        }
    }

    /// Returns the number of pushed datagrams that are not sent or dropped yet.
    pub fn len(&self) -> usize {
        self.queue.len() - self.done
    }

    /// Returns whether all pushed datagrams are sent or dropped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all queued datagrams. Returns their number.
    pub fn clear(&mut self) -> usize {
        let count = self.len();
        self.queue.clear();
        (self.done, self.one_by_one, self.refusal, self.error) = (0, 0..0, None, None);
        count
    }

    /// Sets a callback for refused runs of datagrams, for example to write a log line. It is called
    /// once per [cause](Refusal::cause), until runs are [switched
    /// on](crate::UdpSocket::set_segmentation) again.
    pub fn set_notice(&mut self, notice: impl FnMut(&Refusal) + Send + 'static) {
        self.notice = Some(Box::new(notice));
    }

    /// Returns the counters of sending.
    pub const fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// Returns the socket.
    pub const fn socket(&self) -> &S {
        &self.socket
    }
}

impl<S: fmt::Debug, B> fmt::Debug for Sender<S, B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sender")
            .field("socket", &self.socket)
            .field("length", &(self.queue.len() - self.done))
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Returns whether the error means that there is no room or memory now, so that the datagram must
/// be sent later.
fn is_temporary(error: &io::Error) -> bool {
    /// `ENOBUFS`, which has no [`io::ErrorKind`].
    const NO_BUFFERS: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 105 } else { 55 };
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
        || error.raw_os_error() == Some(NO_BUFFERS)
}

/// Returns whether the error may mean that runs of datagrams are not supported.
fn may_concern_runs(error: &io::Error) -> bool {
    /// `EIO`: the device computes no checksums (`udp_send_skb`).
    const IO: i32 = 5;
    error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(IO)
}

/// Returns whether the error means that a datagram is too long.
fn is_too_long(error: &io::Error) -> bool {
    /// `EMSGSIZE`, which has no [`io::ErrorKind`].
    const MESSAGE_TOO_LONG: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 90 } else { 40 };
    error.raw_os_error() == Some(MESSAGE_TOO_LONG)
}

/// Returns the vector emptied, for slices of another lifetime. Its memory is reused.
fn reuse_slices<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
