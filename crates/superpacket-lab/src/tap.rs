//! A TAP device whose other end writes super-packets as they are, with any virtio header (tun(4)).

use std::io::IoSlice;

use superpacket::virtio::{ByteOrder, Format, Header as VnetHeader};
use superpacket_io::system::{TUN_F_UDP_TUNNEL_GSO, TUN_F_UDP_TUNNEL_GSO_CSUM, TunKind, TunQueue, open_tun};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;

/// The virtio header with room for a tunnel's offsets, of Linux 6.17.
const FORMAT: Format = Format::Tunnel;
/// Super-packets in UDP tunnels, and what these stand on. A kernel that knows it takes them.
const TUNNEL_OFFLOADS: u32 = TUN_F_UDP_TUNNEL_GSO
    | TUN_F_UDP_TUNNEL_GSO_CSUM
    | libc::TUN_F_CSUM
    | libc::TUN_F_TSO4
    | libc::TUN_F_TSO6
    | libc::TUN_F_USO4
    | libc::TUN_F_USO6;

/// Room for the longest frame that a device without BIG TCP hands over, and its header.
const LARGEST_FRAME: usize = 1 << 17;

/// The end of a TAP device that a program holds. The device goes with it.
#[derive(Debug)]
pub struct TapFile {
    queue: TunQueue,
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
        let queue = host.run(|| {
            let file = open_tun().map_err(|error| unsupported(format!("/dev/net/tun: {error}")))?;
            TunQueue::attach(file, name, TunKind::Tap, false).context(|| what.clone())
        })?;
        queue.set_header(FORMAT, None).context(|| what.clone())?;
        let known = queue.set_offloads(TUNNEL_OFFLOADS);
        known.map_err(|error| unsupported(format!("TUN_F_UDP_TUNNEL_GSO: {error}")))?;
        let link = host.link(name);
        link.up()?;
        Ok(Self { queue, link })
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
        rustix::io::writev(&self.queue, &parts).map(drop).context(|| format!("{}: writing a frame", self.link))
    }

    /// Returns the next frame that the host sends, as it lies in the kernel, if one is there.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the device is gone.
    pub fn receive(&self) -> Result<Option<(VnetHeader, Vec<u8>)>, LabError> {
        let what = || format!("{}: reading a frame", self.link);
        let mut bytes = vec![0; LARGEST_FRAME];
        match rustix::io::read(&self.queue, &mut bytes) {
            Ok(length) => {
                bytes.truncate(length);
                let header = VnetHeader::read(&bytes, FORMAT, ByteOrder::NATIVE).map_err(std::io::Error::other).context(what)?;
                Ok(Some((header, bytes.split_off(FORMAT.length()))))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error).context(what),
        }
    }
}
