//! A TAP or TUN device whose other end writes super-packets as they are, with any virtio header
//! (tun(4)).

use std::io::{ErrorKind, IoSlice};

use superpacket::virtio::{ByteOrder, Format, Header as VnetHeader};
use superpacket_io::system::{TUN_F_UDP_TUNNEL_GSO, TunKind, TunQueue, open_tun};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;

/// Super-packets in UDP tunnels, and what these stand on. A kernel that knows it takes them.
const TUNNEL_OFFLOADS: u32 = TUN_F_UDP_TUNNEL_GSO | libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// The end of a TAP or TUN device that a program holds. The device goes with it.
#[derive(Debug)]
pub struct TapFile {
    queue: TunQueue,
    format: Format,
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
        // The virtio header with room for a tunnel's offsets, of Linux 6.17.
        let tap = Self::open(host, name, TunKind::Tap, Format::Tunnel)?;
        let known = tap.queue.set_offloads(TUNNEL_OFFLOADS);
        known.map_err(|error| LabError::Unsupported { what, reason: format!("TUN_F_UDP_TUNNEL_GSO: {error}") })?;
        tap.link.up()?;
        Ok(tap)
    }

    /// Makes a device in `host`, up, whose packets have a virtio header of 10 bytes. The host hands
    /// over segments with complete checksums.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where the kernel has no such devices.
    pub fn plain(host: &Host, name: &str, kind: TunKind) -> Result<Self, LabError> {
        let file = Self::open(host, name, kind, Format::Plain)?;
        file.link.up()?;
        Ok(file)
    }

    fn open(host: &Host, name: &str, kind: TunKind, format: Format) -> Result<Self, LabError> {
        let what = format!("host {}: {} device {name}", host.name(), kind.name());
        let queue = host.run(|| {
            let unsupported = |error| LabError::Unsupported { what: what.clone(), reason: format!("/dev/net/tun: {error}") };
            let file = open_tun().map_err(unsupported)?;
            TunQueue::attach(file, name, kind, false).context(|| what.clone())
        })?;
        queue.set_header(format, None).context(|| what.clone())?;
        Ok(Self { queue, format, link: host.link(name) })
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
        let mut bytes = [0; Format::LONGEST];
        let length = header.write(&mut bytes, self.format, ByteOrder::NATIVE).expect("there is room for it");
        let parts = [IoSlice::new(&bytes[..length]), IoSlice::new(frame)];
        rustix::io::writev(&self.queue, &parts).map(drop).context(|| format!("{}: writing a frame", self.link))
    }
    /// Returns the next packet that the host sends, without its header; `None` if none is there.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the device is gone, or the packet is longer than `buffer`.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<Vec<u8>>, LabError> {
        let length = match rustix::io::read(&self.queue, &mut *buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(LabError::system(format!("{}: reading a packet", self.link), error)),
        };
        Ok(buffer.get(self.format.length()..length).map(<[u8]>::to_vec))
    }
}
