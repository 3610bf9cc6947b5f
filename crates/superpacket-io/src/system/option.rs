//! Socket options whose values are plain numbers or structures of them, for those that rustix has
//! no call for.

#![expect(unsafe_code, reason = "setsockopt(2) and getsockopt(2) of options that rustix has not")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// A value that the kernel may read as bytes and may fill with any.
///
/// # Safety
/// The type has no padding, and every bit pattern is one of its values.
pub unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: `i32`, `u16`, `u16` and eight bytes: 16 bytes without padding.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: four `u32`.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: seven `u32`.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: three `u32`.
unsafe impl Plain for libc::tpacket_stats_v3 {}
// SAFETY: each element is plain, and lies behind the one before.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Sets an option (`setsockopt(2)`).
///
/// # Errors
/// What the system refused.
pub fn set_option<T: Plain>(socket: impl AsFd, level: i32, option: i32, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer is to a value of this length, all of whose bytes are initialized, and it
    // is read during the call only.
    let result = unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the value of an option (`getsockopt(2)`); what the kernel leaves out is 0.
///
/// # Errors
/// What the system refused.
pub fn option<T: Plain>(socket: impl AsFd, level: i32, option: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers are to memory of this length, and to the length.
    let result = unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes have been written, and any bytes are a value.
    Ok(unsafe { value.assume_init() })
}

/// Attaches a filter of classic BPF to a socket (`SO_ATTACH_FILTER`), in place of the one that it
/// has.
///
/// # Errors
/// What the system refused: `EINVAL` if it is no program.
pub(crate) fn attach_filter(socket: impl AsFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let count = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: count, filter: filter.as_ptr().cast_mut() };
    let (descriptor, length) = (socket.as_fd().as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the pointer is to a program of this length, whose instructions, as many as it says,
    // outlive the call, which only reads them.
    let result =
        unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, std::ptr::from_ref(&program).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_was_set_is_there() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1200).expect("Linux 4.18");
        assert_eq!(option::<i32>(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).expect("asked"), 1200);
        assert_eq!(option::<[i32; 2]>(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).expect("asked"), [1200, 0], "shorter than asked for");
        let refused = set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, -1).expect_err("no size");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
