//! What TCP says of a connection.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The beginning of `struct tcp_info` as this C library knows it; fields that the kernel does not
/// fill are zero.
pub(crate) fn tcp_info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointer is valid for a write of `length` bytes; the structure holds integers
    // only, so any bytes are a value.
    let result =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut length) };
    if result == 0 {
        // SAFETY: zeroed before, integers only.
        Ok(unsafe { info.assume_init() })
    } else {
        Err(io::Error::last_os_error())
    }
}
