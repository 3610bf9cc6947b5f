//! A TAP or TUN device whose file descriptor passes super-packets unchanged, with the virtio header
//! that a test gives (tun(4)).

use std::io::IoSlice;

use superpacket::virtio::{ByteOrder, Format, Header as VnetHeader};
use superpacket_port::system::{
    TUN_F_UDP_TUNNEL_GSO, TUN_F_UDP_TUNNEL_GSO_CSUM, TunKind, TunQueue, open_tun,
};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;

/// Offload flags for super-packets in UDP tunnels (Linux 6.17), with the flags that they require.
const TUNNEL_OFFLOADS: u32 = TUN_F_UDP_TUNNEL_GSO
    | TUN_F_UDP_TUNNEL_GSO_CSUM
    | libc::TUN_F_CSUM
    | libc::TUN_F_TSO4
    | libc::TUN_F_TSO6
    | libc::TUN_F_USO4
    | libc::TUN_F_USO6;

/// Buffer size for the longest frame that a device without BIG TCP delivers, with its header.
const LARGEST_FRAME: usize = 1 << 18;

/// The user-space side of a TAP or TUN device. Dropping it removes the device.
#[derive(Debug)]
pub struct TapFile {
    queue: TunQueue,
    format: Format,
    link: Link,
}

impl TapFile {
    /// Creates a TAP device in `host` and sets it up. Its frames have a virtio header of 24 bytes.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if the kernel does not accept super-packets in UDP tunnels (before
    /// Linux 6.17) or has no TAP devices.
    pub fn new(host: &Host, name: &str) -> Result<Self, LabError> {
        let what = format!("host {}: TAP device {name} with super-packets in tunnels", host.name());
        // The virtio header with fields for a tunnel's offsets, since Linux 6.17.
        let tap = Self::open(host, name, TunKind::Tap, Format::Tunnel)?;
        let known = tap.queue.set_offloads(TUNNEL_OFFLOADS);
        known.map_err(|error| LabError::Unsupported {
            what,
            reason: format!("TUN_F_UDP_TUNNEL_GSO: {error}"),
        })?;
        tap.link.up()?;
        Ok(tap)
    }

    /// Creates a device in `host` and sets it up. Its packets have a virtio header of 10 bytes. It
    /// announces no offloads, so the host delivers segments with complete checksums.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if the kernel has no such devices.
    pub fn plain(host: &Host, name: &str, kind: TunKind) -> Result<Self, LabError> {
        let file = Self::open(host, name, kind, Format::Plain)?;
        file.link.up()?;
        Ok(file)
    }

    fn open(host: &Host, name: &str, kind: TunKind, format: Format) -> Result<Self, LabError> {
        let what = format!("host {}: {} device {name}", host.name(), kind.name());
        let queue = host.run(|| {
            let unsupported = |error| LabError::Unsupported {
                what: what.clone(),
                reason: format!("/dev/net/tun: {error}"),
            };
            let file = open_tun().map_err(unsupported)?;
            TunQueue::attach(file, name, kind, false).context(|| what.clone())
        })?;
        queue.set_header(format, None).context(|| what.clone())?;
        Ok(Self { queue, format, link: host.link(name) })
    }

    /// Returns the device's interface.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Sends a frame to the host. `header` tells the host which checksum and segmentation work
    /// remains.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel rejects the frame.
    pub fn send(&self, header: VnetHeader, frame: &[u8]) -> Result<(), LabError> {
        let mut bytes = [0; Format::LONGEST];
        let length =
            header.write(&mut bytes, self.format, ByteOrder::NATIVE).expect("there is room for it");
        let parts = [IoSlice::new(&bytes[..length]), IoSlice::new(frame)];
        rustix::io::writev(&self.queue, &parts)
            .map(drop)
            .context(|| format!("{}: writing a frame", self.link))
    }

    /// Receives the next frame that the host sent, with its header, exactly as the kernel holds it;
    /// `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the device is gone.
    pub fn receive(&self) -> Result<Option<(VnetHeader, Vec<u8>)>, LabError> {
        let what = || format!("{}: reading a frame", self.link);
        let mut bytes = vec![0; LARGEST_FRAME];
        match rustix::io::read(&self.queue, &mut bytes) {
            Ok(length) => {
                bytes.truncate(length);
                let header = VnetHeader::read(&bytes, self.format, ByteOrder::NATIVE)
                    .map_err(std::io::Error::other)
                    .context(what)?;
                Ok(Some((header, bytes.split_off(self.format.length()))))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error).context(what),
        }
    }
}
