//! `recvmsg(2)` with any control message, and `sendmmsg(2)`, which std and rustix do not offer.

#![expect(unsafe_code, reason = "recvmsg(2) and sendmmsg(2)")]

use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd};

/// Size in bytes of the buffer for control messages: enough for one message. The longest one in use
/// is `struct tpacket_auxdata`, of 20 bytes.
const CONTROL: usize = 64;

/// The result of [`receive_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Bytes written to the buffer.
    pub length: usize,
    /// Whether the message was longer than the buffer.
    pub truncated: bool,
    /// The first 32 bytes of the requested control message's data, padded with zeros.
    pub control: Option<[u8; 32]>,
}

/// A buffer for control messages, aligned like `struct cmsghdr`.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Receives one message and, if present, its control message of this `level` and `kind`
/// (`cmsg(3)`). Never blocks.
///
/// # Errors
/// The system call's error; [`WouldBlock`](io::ErrorKind::WouldBlock) if no message has arrived.
pub fn receive_message(
    socket: impl AsFd,
    buffer: &mut [u8],
    level: libc::c_int,
    kind: libc::c_int,
) -> io::Result<ReceivedMessage> {
    let mut control = Control([0; CONTROL]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    // SAFETY: the header points to a buffer and a control area that live through the call, each
    // with its length.
    let length =
        unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = None;
    // SAFETY: the kernel has filled the control area; the macros stay within `msg_controllen`.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&header) };
    while !message.is_null() {
        // SAFETY: not null, so it is a whole header within the control area, aligned by `Control`.
        let head = unsafe { &*message };
        if head.cmsg_level == level && head.cmsg_type == kind {
            let mut data = [0; 32];
            // SAFETY: as above; `CMSG_LEN(0)` is the length of the header alone.
            let (from, whole) = unsafe {
                (libc::CMSG_DATA(message), head.cmsg_len as usize - libc::CMSG_LEN(0) as usize)
            };
            // SAFETY: `whole` bytes of data follow the header in the control area, and at most 32
            // go to `data`.
            unsafe {
                std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), whole.min(data.len()))
            };
            found = Some(data);
        }
        // SAFETY: `message` is of this header's control area.
        message = unsafe { libc::CMSG_NXTHDR(&header, message) };
    }
    Ok(ReceivedMessage {
        length: length as usize,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        control: found,
    })
}

/// Messages that are prepared once, and can be sent repeatedly.
#[derive(Debug)]
pub struct Burst<'bytes> {
    headers: Vec<libc::mmsghdr>,
    // The headers point to these.
    _parts: &'bytes [Vec<IoSlice<'bytes>>],
}

impl<'bytes> Burst<'bytes> {
    /// Prepares a burst of messages, each gathered from its parts.
    pub fn new(messages: &'bytes [Vec<IoSlice<'bytes>>]) -> Self {
        let header = |parts: &Vec<IoSlice<'_>>| {
            // SAFETY: all-zero is a valid mmsghdr: null pointers with zero lengths.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            // The documentation of IoSlice guarantees the ABI of iovec; sending does not write to
            // it.
            header.msg_hdr.msg_iov = parts.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_iovlen = parts.len() as _;
            header
        };
        Self { headers: messages.iter().map(header).collect(), _parts: messages }
    }

    /// Sends messages from index `first` on, as many as one system call accepts. Returns the number
    /// sent.
    ///
    /// # Errors
    /// The system call's error for the first of these messages.
    ///
    /// # Panics
    /// If there are fewer than `first` messages.
    pub fn send(&mut self, socket: impl AsFd, first: usize) -> io::Result<usize> {
        let rest = &mut self.headers[first..];
        // sendmmsg takes at most UIO_MAXIOV messages.
        let count = rest.len().min(1024);
        // SAFETY: the first `count` headers are valid and point to parts that live as long as
        // `self`.
        let sent = unsafe {
            libc::sendmmsg(socket.as_fd().as_raw_fd(), rest.as_mut_ptr(), count as u32, 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// Reusable memory for messages gathered from several slices. Each message begins with a header of
/// `HEADER` bytes.
#[derive(Default)]
pub(crate) struct MessageMemory<const HEADER: usize> {
    headers: Vec<[u8; HEADER]>,
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: only `Messages::send` follows the pointers in it, and `begin` has removed all older ones
// before that `Messages` exists.
unsafe impl<const HEADER: usize> Send for MessageMemory<HEADER> {}

impl<const HEADER: usize> MessageMemory<HEADER> {
    /// Starts an empty list of messages.
    #[inline]
    pub(crate) fn begin<'bytes>(&mut self) -> Messages<'_, 'bytes, HEADER> {
        self.headers.clear();
        self.pieces.clear();
        self.messages.clear();
        Messages { memory: self, bytes: PhantomData }
    }
}

/// Messages for one call of `sendmmsg(2)`.
pub(crate) struct Messages<'memory, 'bytes, const HEADER: usize> {
    memory: &'memory mut MessageMemory<HEADER>,
    /// Ties the lifetime of the slices that the messages point to, apart from the headers, to this
    /// list.
    bytes: PhantomData<&'bytes [u8]>,
}

impl<'bytes, const HEADER: usize> Messages<'_, 'bytes, HEADER> {
    /// Adds a message: a header, followed by the slices.
    #[inline]
    pub(crate) fn push(
        &mut self,
        header: [u8; HEADER],
        slices: impl Iterator<Item = &'bytes [u8]>,
    ) {
        let MessageMemory { headers, pieces, messages } = &mut *self.memory;
        let first = pieces.len();
        headers.push(header);
        // Placeholder for the header, whose final address is not known yet.
        pieces.push(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: HEADER });
        pieces.extend(slices.map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }));
        // SAFETY: all bytes zero is a message without address and control data.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iovlen = (pieces.len() - first) as _;
        messages.push(message);
    }

    /// Returns whether the list is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.messages.is_empty()
    }

    /// Returns the number of slices of all messages, headers included.
    #[inline]
    pub(crate) fn pieces(&self) -> usize {
        self.memory.pieces.len()
    }

    /// Sends the messages without blocking, and returns how many the kernel accepted.
    ///
    /// # Errors
    /// The system call's error for the first message.
    #[inline]
    pub(crate) fn send(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let MessageMemory { headers, pieces, messages } = &mut *self.memory;
        // Nothing is pushed to these vectors from here on, so pointers into them stay valid.
        let mut rest = pieces.as_mut_slice();
        for (message, header) in messages.iter_mut().zip(headers) {
            let (pieces, others) = rest.split_at_mut(message.msg_hdr.msg_iovlen as _);
            pieces[0].iov_base = header.as_mut_ptr().cast();
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            rest = others;
        }
        let count = messages.len() as libc::c_uint;
        // SAFETY: each message points to its pieces and has their count. Each piece points to a
        // header or to bytes borrowed for as long as `self` lives; the kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn each_message_is_its_header_and_its_slices() {
        let (from, to) = UnixDatagram::pair().expect("a pair");
        let mut memory = MessageMemory::<2>::default();
        // The second round reuses the memory of the first.
        for round in 0..2u8 {
            let mut messages = memory.begin();
            assert!(messages.is_empty() && messages.pieces() == 0);
            // Enough messages that each vector is reallocated as it grows.
            for number in 0..5u8 {
                messages.push(
                    [round, number],
                    [&b"head"[..], &b""[..], &b"payload"[..usize::from(number)]].into_iter(),
                );
            }
            assert_eq!(messages.pieces(), 20);
            assert_eq!(messages.send(&from).expect("room for five"), 5);
            for number in 0..5u8 {
                let mut buffer = [0; 32];
                let length = to.recv(&mut buffer).expect("sent");
                assert_eq!(
                    buffer[..length],
                    [&[round, number][..], b"head", &b"payload"[..usize::from(number)]].concat()
                );
            }
        }
        drop(to);
        let mut messages = memory.begin();
        messages.push([0, 0], std::iter::empty());
        assert_eq!(
            messages.send(&from).expect_err("nobody receives").kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
