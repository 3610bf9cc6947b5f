//! `recvmsg(2)` with any control message, and `sendmmsg(2)`: what std and rustix do not offer.

#![expect(unsafe_code, reason = "recvmsg(2) and sendmmsg(2)")]

use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd};

/// Room for one control message: `struct tpacket_auxdata` of 20 bytes is the longest asked for.
const CONTROL: usize = 64;

/// What [`receive_message`] gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes written to the buffer.
    pub length: usize,
    /// Whether the message was longer than the buffer.
    pub truncated: bool,
    /// The data of the control message asked for, its first 32 bytes; the rest of them is zero.
    pub control: Option<[u8; 32]>,
}

/// Aligned as `struct cmsghdr` is.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Receives one message, and the control message of `level` and `kind` (`cmsg(3)`), if there is
/// one; never waits.
///
/// # Errors
/// What the system refused, and [`WouldBlock`](io::ErrorKind::WouldBlock) where nothing has come.
pub fn receive_message(socket: impl AsFd, buffer: &mut [u8], level: libc::c_int, kind: libc::c_int) -> io::Result<Received> {
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
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
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
            let (from, whole) = unsafe { (libc::CMSG_DATA(message), head.cmsg_len as usize - libc::CMSG_LEN(0) as usize) };
            // SAFETY: `whole` bytes of data follow the header in the control area, and at most 32
            // go to `data`.
            unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), whole.min(data.len())) };
            found = Some(data);
        }
        // SAFETY: `message` is of this header's control area.
        message = unsafe { libc::CMSG_NXTHDR(&header, message) };
    }
    Ok(Received { length: length as usize, truncated: header.msg_flags & libc::MSG_TRUNC != 0, control: found })
}

/// Messages made ready for sending again and again.
#[derive(Debug)]
pub struct Burst<'bytes> {
    headers: Vec<libc::mmsghdr>,
    // The headers point to these.
    _parts: &'bytes [Vec<IoSlice<'bytes>>],
}

impl<'bytes> Burst<'bytes> {
    /// A burst of messages, each gathered from its parts.
    pub fn new(messages: &'bytes [Vec<IoSlice<'bytes>>]) -> Self {
        let header = |parts: &Vec<IoSlice<'_>>| {
            // SAFETY: all-zero is a valid mmsghdr: null pointers with zero lengths.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            // IoSlice is ABI-compatible with iovec by its documentation; sending does not write to
            // it.
            header.msg_hdr.msg_iov = parts.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_iovlen = parts.len() as _;
            header
        };
        Self { headers: messages.iter().map(header).collect(), _parts: messages }
    }

    /// Sends the messages from `first` on, as many as one call takes, and says how many those were.
    ///
    /// # Errors
    /// What the system refused of the first of them.
    ///
    /// # Panics
    /// If there are fewer than `first`.
    pub fn send(&mut self, socket: impl AsFd, first: usize) -> io::Result<usize> {
        let rest = &mut self.headers[first..];
        // sendmmsg takes at most UIO_MAXIOV messages.
        let count = rest.len().min(1024);
        // SAFETY: the first `count` headers are valid and point to parts that live as long as
        // `self`.
        let sent = unsafe { libc::sendmmsg(socket.as_fd().as_raw_fd(), rest.as_mut_ptr(), count as u32, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}
