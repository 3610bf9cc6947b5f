//! TAP and TUN devices: queues of `/dev/net/tun`, and their system calls
//! (`Documentation/networking/tuntap.rst`, `drivers/net/tun.c`).

#![expect(unsafe_code, reason = "ioctls of tun(4), which rustix has not")]

use std::ffi::{CStr, c_char, c_int, c_short};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode as FileMode, OFlags};
use superpacket::virtio::{ByteOrder, Format};

/// `TUN_F_UDP_TUNNEL_GSO` of Linux 6.17: the reader accepts unsegmented super-packets in UDP
/// tunnels.
pub const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
/// `TUN_F_UDP_TUNNEL_GSO_CSUM` of Linux 6.17: the reader also accepts super-packets in UDP tunnels
/// whose outer UDP checksum is still to be filled in.
pub const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

/// The kind of a TUN/TAP device, which decides whether it carries frames or IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunKind {
    /// A device that carries Ethernet frames.
    Tap,
    /// A device that carries IP packets.
    Tun,
}

impl TunKind {
    /// Returns `tap` or `tun`.
    pub const fn name(self) -> &'static str {
        match self {
            TunKind::Tap => "tap",
            TunKind::Tun => "tun",
        }
    }
}

/// The device that a queue is attached to.
#[derive(Debug)]
pub struct TunIdentity {
    /// The interface's present name; it may have been renamed.
    pub name: String,
    /// Whether the device remains when its last queue is closed.
    pub persistent: bool,
}

/// An open queue of a TAP or TUN device.
#[derive(Debug)]
pub struct TunQueue(OwnedFd);

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens `/dev/net/tun`, whose descriptor can then be attached to a device in this thread's network
/// namespace.
///
/// # Errors
/// The system call's error: the system has no such devices, or this process may not use them.
pub fn open_tun() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/net/tun",
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        FileMode::empty(),
    )?)
}

impl TunQueue {
    /// Attaches the descriptor to the device `name`, and creates the device if it does not exist.
    /// In `name`, `%d` stands for the lowest free number. With `several`, the device may have more
    /// than one queue. Each packet has a virtio header.
    ///
    /// # Errors
    /// The error of `TUNSETIFF`, or a name longer than 15 bytes.
    pub fn attach(fd: OwnedFd, name: &str, kind: TunKind, several: bool) -> io::Result<TunQueue> {
        let mut request = interface_request(name)?;
        let flag = match kind {
            TunKind::Tap => libc::IFF_TAP,
            TunKind::Tun => libc::IFF_TUN,
        };
        let several = if several { libc::IFF_MULTI_QUEUE } else { 0 };
        request.ifr_ifru.ifru_flags =
            (flag | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several) as c_short;
        // SAFETY: `TUNSETIFF` reads and writes one `ifreq`, which lives through the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
        Ok(TunQueue(fd))
    }

    /// Returns the name and persistence of the queue's device.
    ///
    /// # Errors
    /// `EBADFD` if the device has been deleted.
    pub fn identity(&self) -> io::Result<TunIdentity> {
        let mut request = interface_request("")?;
        // SAFETY: `TUNGETIFF` writes one `ifreq`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
        // SAFETY: the kernel terminates the name with a zero byte within the field, and has set the
        // flags of the union.
        let (name, flags) =
            unsafe { (CStr::from_ptr(request.ifr_name.as_ptr()), request.ifr_ifru.ifru_flags) };
        Ok(TunIdentity {
            name: name.to_string_lossy().into_owned(),
            persistent: c_int::from(flags) & libc::IFF_PERSIST != 0,
        })
    }

    /// Sets whether the device remains when its last queue is closed.
    ///
    /// # Errors
    /// The error of `TUNSETPERSIST`.
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        // SAFETY: `TUNSETPERSIST` takes its argument by value.
        check(unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::TUNSETPERSIST, c_int::from(persistent))
        })
    }

    /// Sets the offloads that the host leaves to the reader of the queue (`TUN_F_*`): packets with
    /// partial checksums, and super-packets.
    ///
    /// # Errors
    /// `EINVAL` if the kernel does not know one of them.
    pub fn set_offloads(&self, offloads: u32) -> io::Result<()> {
        // SAFETY: `TUNSETOFFLOAD` takes its argument by value.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })
    }

    /// Sets the format and byte order of the virtio header before each packet; an `order` of `None`
    /// means the machine's order. A persistent device may keep its last user's settings, so both
    /// are always set.
    ///
    /// # Errors
    /// `EINVAL` if the kernel has no header of this length.
    pub fn set_header(&self, format: Format, order: Option<ByteOrder>) -> io::Result<()> {
        self.set_integer(libc::TUNSETVNETHDRSZ, format.length() as c_int)?;
        self.set_integer(libc::TUNSETVNETLE, c_int::from(order == Some(ByteOrder::Little)))?;
        // Most kernels do not have this `ioctl`, and use no big-endian headers either.
        let _ = self.set_integer(libc::TUNSETVNETBE, c_int::from(order == Some(ByteOrder::Big)));
        Ok(())
    }

    /// Returns the network namespace that the device is in now.
    ///
    /// # Errors
    /// The system call's error; unsupported before Linux 5.10.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: `TUNGETDEVNETNS` takes no argument.
        let fd = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETDEVNETNS) };
        check(fd)?;
        // SAFETY: the call has created this descriptor, which the caller owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn set_integer(&self, request: libc::Ioctl, mut value: c_int) -> io::Result<()> {
        // SAFETY: these calls read one `int`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut value) })
    }
}

/// Returns the request for a system call about the interface `name`. A name that is too long is
/// refused, since the kernel would not refuse it.
fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros are valid for this structure of integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name of an interface has 1 to 15 bytes",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Ok(request)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
