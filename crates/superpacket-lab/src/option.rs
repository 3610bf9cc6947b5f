//! Socket options whose values are plain numbers or structures, for those that rustix does not
//! name.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// A value that the kernel may read from and write to a socket option as bytes.
///
/// # Safety
///
/// The type has no padding and no invalid bit pattern.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: u16, u16, i32 and u8s in `repr(C)`: two pointer-free words without padding (`struct
// packet_mreq`).
unsafe impl Plain for libc::packet_mreq {}

/// setsockopt(2).
pub(crate) fn set<T: Plain>(socket: impl AsFd, level: libc::c_int, name: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: the pointer is to a `T` without padding, of the length named, and is read only during
    // the call.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), size_of::<T>() as libc::socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

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

/// Drops of a packet socket since the last call (`struct tpacket_stats`).
pub(crate) fn packet_drops(socket: impl AsFd) -> io::Result<u32> {
    let mut counters = [0_u32; 2];
    let mut length = size_of::<[u32; 2]>() as libc::socklen_t;
    // SAFETY: the pointer is valid for a write of `length` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, counters.as_mut_ptr().cast(), &mut length)
    };
    if result == 0 { Ok(counters[1]) } else { Err(io::Error::last_os_error()) }
}
