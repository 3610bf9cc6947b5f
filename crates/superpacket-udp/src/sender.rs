//! Datagrams that are queued, and leave in runs.

use std::io::{self, IoSlice};
use std::mem;
use std::{fmt, ops};

use crate::{Destination, Transmit};

/// What datagrams are sent by: a [`UdpSocket`](crate::UdpSocket), or what takes its place in tests.
pub trait SendDatagrams {
    /// Sends one datagram, or a run of them: all or none. `scratch` is memory for who needs the
    /// contents in one piece.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room now; others are the system's.
    fn send(&self, transmit: &Transmit<'_>, scratch: &mut Vec<u8>) -> io::Result<()>;

    /// The most datagrams of a run: 1 where runs are not taken.
    fn max_segments(&self) -> usize;

    /// Waits until there is room to send.
    ///
    /// # Errors
    /// The system's.
    fn wait_writable(&self) -> io::Result<()>;

    /// Returns whether a datagram of `length` bytes is known to leave in one IP packet: whether it
    /// fits the path MTU. Asked when a run was refused with an error that has several causes;
    /// `true` where nothing is known.
    fn fits(&self, _destination: &Destination, _length: usize) -> bool {
        true
    }

    /// Is told of a run that was refused. Takes no more runs if the [cause](Refusal::cause) is
    /// [`RefusalCause::Unsupported`]. Returns whether this is news.
    fn refuse(&self, refusal: &Refusal) -> bool;
}

/// Why a run was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCause {
    /// The kernel, the socket or the device takes no runs: they are switched off.
    Unsupported,
    /// The datagrams of this run exceed the path MTU. Other runs are sent as before.
    TooLong,
}

/// A run of datagrams that was refused, and has been sent one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why it was refused.
    pub cause: RefusalCause,
    /// Where it was to go.
    pub destination: Destination,
    /// How many datagrams it had. They have been sent one by one.
    pub datagrams: usize,
    /// Bytes of each but the last.
    pub segment_size: usize,
    /// The error's number (`errno`), if it has one.
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

/// Sends datagrams: those to one destination that follow each other and have the same length leave
/// in one call.
///
/// [`push`](Self::push) queues, [`flush`](Self::flush) sends, in the order of the pushes. The last
/// of a run may be shorter. The buffers are dropped when a flush has sent them.
///
/// # Errors
///
/// | error | the datagram | those behind it |
/// |---|---|---|
/// | [`WouldBlock`](io::ErrorKind::WouldBlock) ([`try_flush`](Self::try_flush) only), `ENOBUFS`, `ENOMEM` | stays | stay, for the next flush |
/// | all else, of a single datagram: too long, no route, not permitted | dropped, counted as [rejected](SenderCounters::rejected) | sent; the flush returns the first such error |
pub struct Sender<S, B> {
    socket: S,
    queue: Vec<(Destination, B)>,
    /// How many of the queue are sent or rejected.
    done: usize,
    /// How many of the next are sent one by one, since the run of them was refused.
    apart: ops::Range<usize>,
    /// That it was refused for itself is not known yet.
    refusal: Option<Refusal>,
    /// The first error of this flush.
    error: Option<io::Error>,
    slices: Vec<IoSlice<'static>>,
    scratch: Vec<u8>,
    counters: SenderCounters,
    notice: Option<Notice>,
}

/// Who is told of a refusal.
type Notice = Box<dyn FnMut(&Refusal) + Send>;

/// What a [`Sender`] has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SenderCounters {
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Calls that sent.
    pub sends: u64,
    /// Of the calls, those that sent more than one datagram.
    pub runs: u64,
    /// Runs that were refused, for another reason than their datagrams' length.
    pub refused: u64,
    /// Runs whose datagrams exceed the path MTU, and were sent one by one.
    pub too_long: u64,
    /// Single datagrams that were refused, and dropped.
    pub rejected: u64,
    /// Calls that found no room.
    pub full: u64,
}

/// The longest run in bytes: what an IPv4 packet has room for behind its headers.
const LONGEST: usize = 65_535 - 20 - 8;

impl<S: SendDatagrams, B: AsRef<[u8]>> Sender<S, B> {
    /// Sends by this socket.
    pub fn new(socket: S) -> Self {
        Sender {
            socket,
            queue: Vec::new(),
            done: 0,
            apart: 0..0,
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

    /// Sends all that is queued. Waits where there is no room.
    ///
    /// # Errors
    /// The system's; see [above](Self#errors).
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

    /// As [`flush`](Self::flush), and drops what stays after an error, as a full queue would have
    /// it.
    ///
    /// # Errors
    /// The system's.
    pub fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush();
        self.clear();
        result
    }

    /// As [`flush`](Self::flush), without waiting.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) where there is no room: the next call goes on.
    /// Others are the system's; see [above](Self#errors).
    pub fn try_flush(&mut self) -> io::Result<()> {
        while self.done < self.queue.len() {
            let end = if self.apart.contains(&self.done) {
                self.done + 1
            } else {
                // What was refused and none of whose datagrams was taken was refused for itself.
                self.refusal = None;
                self.run_end()
            };
            match self.send_run(self.done..end) {
                Ok(()) => self.sent(end),
                Err(error) if stays(&error) => {
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
        (self.done, self.apart, self.refusal) = (0, 0..0, None);
        self.error.take().map_or(Ok(()), Err)
    }

    /// Where the run ends that starts with the first that is not done.
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
        let mut slices = reused(mem::take(&mut self.slices));
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
        self.slices = reused(slices);
        result
    }

    #[inline]
    fn sent(&mut self, end: usize) {
        let datagrams = self.queue.get(self.done..end).unwrap_or(&[]);
        self.counters.datagrams += datagrams.len() as u64;
        self.counters.bytes +=
            datagrams.iter().map(|(_, datagram)| datagram.as_ref().len() as u64).sum::<u64>();
        self.counters.sends += 1;
        self.counters.runs += u64::from(datagrams.len() > 1);
        self.done = end;
        // The last of a run may be taken because it is short. A datagram as long as the run's
        // others proves that it was refused as a run.
        if let Some(refusal) = self.refusal.take_if(|refusal| {
            datagrams.first().is_some_and(|(_, first)| first.as_ref().len() == refusal.segment_size)
        }) {
            self.tell(&refusal);
        }
    }

    /// Has the datagrams of a run sent one by one.
    #[cold]
    fn refuse_run(&mut self, end: usize, error: &io::Error) {
        self.apart = self.done..end;
        let Some((destination, first)) = self.queue.get(self.done) else { return };
        let (datagrams, segment_size) = (end - self.done, first.as_ref().len());
        // Linux before 6.14 says EINVAL of datagrams that are too long, too (`udp_send_skb`).
        let is_offload = is_of_offload(error);
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
                self.tell(&refusal);
            }
        }
    }

    #[cold]
    fn tell(&mut self, refusal: &Refusal) {
        let is_news = self.socket.refuse(refusal);
        if let (true, Some(notice)) = (is_news, &mut self.notice) {
            notice(refusal);
        }
    }

    /// How many datagrams have been pushed and are not sent or dropped.
    pub fn len(&self) -> usize {
        self.queue.len() - self.done
    }

    /// Is everything sent or dropped that has been pushed?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops what is queued. Returns how many datagrams that were.
    pub fn clear(&mut self) -> usize {
        let count = self.len();
        self.queue.clear();
        (self.done, self.apart, self.refusal, self.error) = (0, 0..0, None, None);
        count
    }

    /// Calls `notice` when a run was refused: for a line in a log. It is called once for each
    /// [cause](Refusal::cause), until runs are [switched on](crate::UdpSocket::set_segmentation)
    /// again.
    pub fn set_notice(&mut self, notice: impl FnMut(&Refusal) + Send + 'static) {
        self.notice = Some(Box::new(notice));
    }

    /// What has been sent so far.
    pub const fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// The socket that is sent by.
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

/// Is there no room or memory now, so that the datagram is to be sent later?
fn stays(error: &io::Error) -> bool {
    /// `ENOBUFS`, for which there is no kind of error.
    const NO_BUFFERS: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 105 } else { 55 };
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
        || error.raw_os_error() == Some(NO_BUFFERS)
}

/// May the error tell that runs are not taken?
fn is_of_offload(error: &io::Error) -> bool {
    /// `EIO`: the device computes no checksums (`udp_send_skb`).
    const IO: i32 = 5;
    error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(IO)
}

/// Does the error tell that a datagram is too long?
fn is_too_long(error: &io::Error) -> bool {
    /// `EMSGSIZE`, for which there is no kind of error.
    const MESSAGE_TOO_LONG: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 90 } else { 40 };
    error.raw_os_error() == Some(MESSAGE_TOO_LONG)
}

/// The memory of a vector, for slices of other bytes: collected in place, so that nothing is
/// allocated.
fn reused<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
