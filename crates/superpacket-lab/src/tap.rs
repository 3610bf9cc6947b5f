//! A TAP device whose other end writes super-packets as they are, with any virtio header (tun(4)).

#![expect(unsafe_code, reason = "ioctls of tun(4), which rustix has not")]

use std::ffi::{c_char, c_int, c_short};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use superpacket::virtio::{ByteOrder, Format, Header as VnetHeader};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;

/// The virtio header with room for a tunnel's offsets, of Linux 6.17.
const FORMAT: Format = Format::Tunnel;
/// `TUN_F_UDP_TUNNEL_GSO`, and what it stands on. A kernel that knows it takes super-packets in
/// tunnels.
const TUNNEL_OFFLOADS: u32 = 0x80 | libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// The end of a TAP device that a program holds. The device goes with it.
#[derive(Debug)]
pub struct TapFile {
    file: OwnedFd,
    link: Link,
}

impl TapFile {
    /// Makes a TAP device in `host`, up, whose frames have a virtio header of 24 bytes.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where the kernel takes no super-packets in UDP tunnels (before
    /// Linux 6.17) or has no TAP devices.
    pub fn new(host: &Host, name: &str) -> Result<Self, LabError> {
        let what = format!("host {}: TAP device {name} with super-packets in tunnels", host.name());
        let unsupported = |reason: String| LabError::Unsupported { what: what.clone(), reason };
        let file = host.run(|| {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file =
                rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|error| unsupported(format!("/dev/net/tun: {error}")))?;
            attach(&file, name).context(|| what.clone())?;
            Ok::<_, LabError>(file)
        })?;
        let mut length = FORMAT.length() as c_int;
        // SAFETY: `TUNSETVNETHDRSZ` reads one `int`, which lives through the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw mut length) }).context(|| what.clone())?;
        // SAFETY: `TUNSETOFFLOAD` takes its argument by value.
        let known = check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, TUNNEL_OFFLOADS) });
        known.map_err(|error| unsupported(format!("TUN_F_UDP_TUNNEL_GSO: {error}")))?;
        let link = host.link(name);
        link.up()?;
        Ok(Self { file, link })
    }

    /// The device.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Hands the host a frame, and what is left to do to it.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where it refuses.
    pub fn send(&self, header: VnetHeader, frame: &[u8]) -> Result<(), LabError> {
        let mut bytes = [0; FORMAT.length()];
        header.write(&mut bytes, FORMAT, ByteOrder::NATIVE).expect("there is room for it");
        let parts = [IoSlice::new(&bytes), IoSlice::new(frame)];
        rustix::io::writev(&self.file, &parts).map(drop).context(|| format!("{}: writing a frame", self.link))
    }
}

fn attach(file: &OwnedFd, name: &str) -> io::Result<()> {
    // SAFETY: all zeros are valid for this structure of integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of an interface has 1 to 15 bytes"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;
    // SAFETY: `TUNSETIFF` reads and writes one `ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
