//! TAP and TUN devices: descriptors of `/dev/net/tun`, and their system calls
//! (`Documentation/networking/tuntap.rst`, `drivers/net/tun.c`).

#![expect(unsafe_code, reason = "ioctls of tun(4), which rustix has not")]

use std::ffi::{CStr, c_char, c_int, c_short};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode as FileMode, OFlags};
use superpacket::virtio::{ByteOrder, Format};

/// `TUN_F_UDP_TUNNEL_GSO`, of Linux 6.17: super-packets in UDP tunnels may come undone.
pub const TUN_F_UDP_TUNNEL_GSO: u32 = 0x80;
/// `TUN_F_UDP_TUNNEL_GSO_CSUM`: those too whose outer checksum is to be filled in.
pub const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

/// The two kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunKind {
    /// Ethernet frames.
    Tap,
    /// IP packets.
    Tun,
}

impl TunKind {
    /// Its name: `tap` or `tun`.
    pub const fn name(self) -> &'static str {
        match self {
            TunKind::Tap => "tap",
            TunKind::Tun => "tun",
        }
    }
}

/// What a queue says of its device.
#[derive(Debug)]
pub struct TunIdentity {
    /// The interface's present name: it may have been renamed.
    pub name: String,
    /// It stays when its last queue is closed.
    pub persistent: bool,
}

/// An open queue, attached to a device.
#[derive(Debug)]
pub struct TunQueue(OwnedFd);

impl AsFd for TunQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens the device that makes devices, to be attached to one in the network namespace of this
/// thread.
///
/// # Errors
/// What the system says: it has no such devices, or this process may not use them.
pub fn open_tun() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/net/tun",
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        FileMode::empty(),
    )?)
}

impl TunQueue {
    /// Attaches to the device `name`, which is made if it is not there, as its only queue or one of
    /// several; in `name`, `%d` stands for the first number that is free. Each packet has a virtio
    /// header.
    ///
    /// # Errors
    /// What the system says (`TUNSETIFF`), or that the name has more than 15 bytes.
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

    /// What device it is attached to.
    ///
    /// # Errors
    /// `EBADFD` when the device has been deleted.
    pub fn identity(&self) -> io::Result<TunIdentity> {
        let mut request = interface_request("")?;
        // SAFETY: `TUNGETIFF` writes one `ifreq`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
        // SAFETY: the kernel ends the name with a zero byte within the field, and has filled in the
        // flags of the union.
        let (name, flags) =
            unsafe { (CStr::from_ptr(request.ifr_name.as_ptr()), request.ifr_ifru.ifru_flags) };
        Ok(TunIdentity {
            name: name.to_string_lossy().into_owned(),
            persistent: c_int::from(flags) & libc::IFF_PERSIST != 0,
        })
    }

    /// Does the device stay when its last queue is closed?
    ///
    /// # Errors
    /// What the system says (`TUNSETPERSIST`).
    pub fn set_persistent(&self, persistent: bool) -> io::Result<()> {
        // SAFETY: `TUNSETPERSIST` takes its argument by value.
        check(unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::TUNSETPERSIST, c_int::from(persistent))
        })
    }

    /// What the host may hand over undone: bits `TUN_F_*`.
    ///
    /// # Errors
    /// `EINVAL`: the kernel does not know some of it.
    pub fn set_offloads(&self, offloads: u32) -> io::Result<()> {
        // SAFETY: `TUNSETOFFLOAD` takes its argument by value.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })
    }

    /// The virtio header before each packet, in this byte order, or else in the machine's. A
    /// persistent device may come with what its last user chose, so both are always set.
    ///
    /// # Errors
    /// `EINVAL`: the kernel knows no header of this length.
    pub fn set_header(&self, format: Format, order: Option<ByteOrder>) -> io::Result<()> {
        self.set_integer(libc::TUNSETVNETHDRSZ, format.length() as c_int)?;
        self.set_integer(libc::TUNSETVNETLE, c_int::from(order == Some(ByteOrder::Little)))?;
        // Most kernels have no switch for the other order, and so need none.
        let _ = self.set_integer(libc::TUNSETVNETBE, c_int::from(order == Some(ByteOrder::Big)));
        Ok(())
    }

    /// The network namespace that the device lies in now.
    ///
    /// # Errors
    /// What the system says: before Linux 5.10 it does not know.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: `TUNGETDEVNETNS` takes no argument.
        let fd = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETDEVNETNS) };
        check(fd)?;
        // SAFETY: the call has made this descriptor, for its caller to own.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn set_integer(&self, request: libc::Ioctl, mut value: c_int) -> io::Result<()> {
        // SAFETY: these calls read one `int`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut value) })
    }
}

/// A request about an interface; the name is cut by nobody, so it must fit.
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
