//! The system calls of `drivers/net/tun.c` and of network interfaces, as safe functions.
//!
//! `superpacket-port` makes the calls of `tun.c` too, but would add capture files, compression and
//! the bridge's ports to the build. Neither `rustix` nor `nix` has them: rustix's `ioctl` relies on
//! its caller for the match of request and argument.

#![expect(unsafe_code, reason = "ioctls of tun(4) and netdevice(7)")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

use crate::{Layer, Offloads};

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_uint>(b'T', 208);
const TUNGETIFF: Opcode = opcode::read::<c_uint>(b'T', 210);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
const TUNSETVNETLE: Opcode = opcode::write::<c_int>(b'T', 220);
const TUNSETVNETBE: Opcode = opcode::write::<c_int>(b'T', 222);

const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCSIFFLAGS: Opcode = 0x8914;
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCSIFMTU: Opcode = 0x8922;

const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const IFF_UP: u16 = 0x0001;

const TUN_F_CSUM: c_uint = 0x01;
const TUN_F_TSO4: c_uint = 0x02;
const TUN_F_TSO6: c_uint = 0x04;
const TUN_F_TSO_ECN: c_uint = 0x08;
const TUN_F_USO: c_uint = 0x20 | 0x40;

/// Maximum length of an interface name in bytes, without the terminating zero (`IFNAMSIZ`).
const LONGEST_NAME: usize = 15;

/// `struct ifreq`: an interface name, and the first bytes of the union that follows it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct InterfaceRequest {
    name: [u8; LONGEST_NAME + 1],
    value: [u8; 24],
}

impl InterfaceRequest {
    fn new(name: &str) -> io::Result<Self> {
        if name.len() > LONGEST_NAME || name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is not an interface name: at most 15 bytes, without a zero byte"),
            ));
        }
        let mut request = InterfaceRequest { name: [0; LONGEST_NAME + 1], value: [0; 24] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }

    fn set_flags(&mut self, flags: u16) {
        self.value[..2].copy_from_slice(&flags.to_ne_bytes());
    }

    fn name(&self) -> String {
        let length = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }
}

/// The properties of the device to which a descriptor is attached.
#[derive(Clone, Debug)]
pub(super) struct DeviceIdentity {
    pub(super) name: String,
    /// The header with which packets begin: Ethernet for a TAP device, IP for a TUN device.
    pub(super) layer: Layer,
    /// Whether packets have a `virtio_net_hdr`.
    pub(super) has_header: bool,
}

/// Opens `/dev/net/tun`. The descriptor can then be attached to a device.
pub(super) fn open_clone_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        "/dev/net/tun",
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Attaches a descriptor to the TUN or TAP device `name`, which is created if it does not exist.
pub(super) fn attach(
    fd: impl AsFd,
    name: &str,
    layer: Layer,
    several_queues: bool,
) -> io::Result<()> {
    let mut request = InterfaceRequest::new(name)?;
    let kind = if layer == Layer::Ethernet { IFF_TAP } else { IFF_TUN };
    request.set_flags(
        kind | IFF_NO_PI | IFF_VNET_HDR | if several_queues { IFF_MULTI_QUEUE } else { 0 },
    );
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `InterfaceRequest` is: 40 bytes,
    // aligned to 8, of which every content is valid.
    Ok(unsafe { ioctl(fd, Updater::<TUNSETIFF, _>::new(&mut request)) }?)
}

/// Returns the properties of the device to which the descriptor is attached. Fails with `EBADFD` if
/// it is attached to no device.
pub(super) fn identity(fd: impl AsFd) -> io::Result<DeviceIdentity> {
    let mut request = InterfaceRequest::new("")?;
    // SAFETY: TUNGETIFF writes one `struct ifreq`, which `InterfaceRequest` is.
    unsafe { ioctl(fd, Updater::<TUNGETIFF, _>::new(&mut request)) }?;
    let flags = request.flags();
    // This request does not report IFF_NO_PI: the bit means IFF_NOFILTER here.
    let layer = if flags & (IFF_TUN | IFF_TAP) == IFF_TUN { Layer::Ip } else { Layer::Ethernet };
    Ok(DeviceIdentity { name: request.name(), layer, has_header: flags & IFF_VNET_HDR != 0 })
}

/// Sets the offloads of packets that are read. `EINVAL` means that the kernel does not support all
/// of them.
pub(super) fn set_offloads(fd: impl AsFd, offloads: Offloads) -> io::Result<()> {
    let bits = [
        (offloads.checksum || offloads.has_any_kind(), TUN_F_CSUM),
        (offloads.tcp4, TUN_F_TSO4),
        (offloads.tcp6, TUN_F_TSO6),
        (offloads.tcp4 || offloads.tcp6, TUN_F_TSO_ECN),
        (offloads.udp, TUN_F_USO),
    ];
    let bits = bits.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    Ok(unsafe { ioctl(fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits as usize)) }?)
}

/// Sets the length of the `virtio_net_hdr` before each packet, and that it has the machine's byte
/// order. A persistent device may have other settings of its previous user.
pub(super) fn set_header(fd: impl AsFd, length: usize) -> io::Result<()> {
    set_integer::<TUNSETVNETHDRSZ>(&fd, length as c_int)?;
    set_integer::<TUNSETVNETLE>(&fd, 0)?;
    // Most kernels are built without the other order (CONFIG_TUN_VNET_CROSS_LE); then it need not
    // be switched off.
    let _ = set_integer::<TUNSETVNETBE>(&fd, 0);
    Ok(())
}

fn set_integer<const REQUEST: Opcode>(fd: impl AsFd, value: c_int) -> io::Result<()> {
    // SAFETY: the three calls that this is used for read one `int`.
    Ok(unsafe { ioctl(fd, Setter::<REQUEST, c_int>::new(value)) }?)
}

/// Makes the descriptor nonblocking: reads and writes fail instead of waiting.
pub(super) fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    Ok(rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Returns the interface's MTU in bytes. `socket` must be in the network namespace of the
/// interface.
pub(super) fn mtu(socket: impl AsFd, name: &str) -> io::Result<u32> {
    let mut request = InterfaceRequest::new(name)?;
    // SAFETY: SIOCGIFMTU reads and writes one `struct ifreq`, which `InterfaceRequest` is.
    unsafe { ioctl(socket, Updater::<SIOCGIFMTU, _>::new(&mut request)) }?;
    Ok(u32::from_ne_bytes([request.value[0], request.value[1], request.value[2], request.value[3]]))
}

/// Sets the interface's MTU.
pub(super) fn set_mtu(socket: impl AsFd, name: &str, mtu: u32) -> io::Result<()> {
    let mut request = InterfaceRequest::new(name)?;
    request.value[..4].copy_from_slice(&mtu.to_ne_bytes());
    // SAFETY: SIOCSIFMTU reads one `struct ifreq`, which `InterfaceRequest` is.
    Ok(unsafe { ioctl(socket, Updater::<SIOCSIFMTU, _>::new(&mut request)) }?)
}

/// Returns whether the interface is switched on.
pub(super) fn is_up(socket: impl AsFd, name: &str) -> io::Result<bool> {
    Ok(flags(socket, name)?.flags() & IFF_UP != 0)
}

/// Switches the interface on.
pub(super) fn set_up(socket: impl AsFd, name: &str) -> io::Result<()> {
    let mut request = flags(&socket, name)?;
    request.set_flags(request.flags() | IFF_UP);
    // SAFETY: SIOCSIFFLAGS reads one `struct ifreq`, which `InterfaceRequest` is.
    Ok(unsafe { ioctl(socket, Updater::<SIOCSIFFLAGS, _>::new(&mut request)) }?)
}

fn flags(socket: impl AsFd, name: &str) -> io::Result<InterfaceRequest> {
    let mut request = InterfaceRequest::new(name)?;
    // SAFETY: SIOCGIFFLAGS reads and writes one `struct ifreq`, which `InterfaceRequest` is.
    unsafe { ioctl(socket, Updater::<SIOCGIFFLAGS, _>::new(&mut request)) }?;
    Ok(request)
}
