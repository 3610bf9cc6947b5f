//! Creates TUN and TAP devices, or attaches to existing ones.

use std::io;
use std::os::fd::OwnedFd;

use superpacket::Framing;

use super::interface::TunInterface;
use super::ioctl;
use super::queue::Queue;
use crate::{Layer, Offloads, Reader, Switches, Writer};

/// A TUN device, or a [TAP device](Builder::layer), with all of its queues in this process.
///
/// Creating a device needs `CAP_NET_ADMIN`. Addresses and routes are configured as for any
/// interface, with `ip` or rtnetlink.
///
/// ```no_run
/// use superpacket_tun::Tun;
///
/// let tun = Tun::builder("vpn0").mtu(1420).open()?;
/// println!("{}: MTU {}, read as super-packets: {}, written: {}", tun.name(), tun.mtu()?, tun.offloads(), tun.switches().on());
/// let (mut reader, mut writer) = tun.split();
/// // One thread writes the packets from the tunnel.
/// std::thread::spawn(move || {
///     loop {
///         let opened: Vec<Vec<u8>> = Vec::new(); // The packets from the tunnel, each in a buffer.
///         opened.into_iter().for_each(|packet| writer.push(packet));
///         writer.flush()?;
/// #       break Ok::<(), std::io::Error>(());
///     }
/// });
/// // Another one reads, and encrypts.
/// let mut packets = Vec::new();
/// loop {
///     packets.clear();
///     if let Some(plan) = reader.read_into(&mut packets)? {
///         for packet in packets.chunks(plan.segment_length) {
///             let _ = packet;
///         }
///     }
/// #   break;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tun {
    interface: TunInterface,
    queues: Vec<Queue>,
    switches: Switches,
    offloads: Offloads,
}

/// An error while a device was opened.
#[derive(Debug, thiserror::Error)]
#[error("TUN device {device:?}: {action}: {source}")]
pub struct OpenError {
    /// The name of the device: the requested one, or the actual one if it was already known.
    pub device: String,
    /// The action that failed, with the name of the system call.
    pub action: &'static str,
    /// The error of the system.
    pub source: io::Error,
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        io::Error::new(error.source.kind(), error)
    }
}

/// Options for opening a device; see [`Tun::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    layer: Layer,
    queues: u16,
    mtu: Option<u32>,
    up: bool,
    offloads: Offloads,
}

impl Builder {
    /// Selects a TAP device, whose packets are Ethernet frames, with [`Layer::Ethernet`]: for
    /// bridging, or for a stack with its own addresses. The default is a TUN device, whose packets
    /// are IP packets. [`Queue::framing`] tells which one it is.
    #[must_use]
    pub fn layer(self, layer: Layer) -> Self {
        Builder { layer, ..self }
    }

    /// Sets the number of queues, 1 to 256, for as many threads (`IFF_MULTI_QUEUE` from 2 on). The
    /// default is 1.
    #[must_use]
    pub fn queues(self, queues: u16) -> Self {
        Builder { queues, ..self }
    }

    /// Sets the MTU in bytes: the length of the longest IP packet that the tunnel carries. By
    /// default the MTU is not changed; a new device has 1500.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Builder { mtu: Some(mtu), ..self }
    }

    /// Sets whether the interface is switched on. The default is `true`.
    #[must_use]
    pub fn up(self, up: bool) -> Self {
        Builder { up, ..self }
    }

    /// Limits the offloads of packets that are read. The default is all that the kernel supports.
    #[must_use]
    pub fn offloads(self, offloads: Offloads) -> Self {
        Builder { offloads, ..self }
    }

    /// Creates the device, or attaches to it if it exists.
    ///
    /// # Errors
    /// [`OpenError`] with the action that failed.
    pub fn open(self) -> Result<Tun, OpenError> {
        let fail = |action| {
            let device = self.name.clone();
            move |source| OpenError { device, action, source }
        };
        if !(1..=256).contains(&self.queues) {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not between 1 and 256", self.queues),
            );
            return Err(fail("number of queues")(source));
        }
        let mut fds = Vec::new();
        let mut name = self.name.clone();
        for _ in 0..self.queues {
            let fd = ioctl::open_clone_device().map_err(fail("open /dev/net/tun"))?;
            ioctl::attach(&fd, &name, self.layer, self.queues > 1)
                .map_err(fail("create or attach to the device (TUNSETIFF)"))?;
            // Further queues attach to the same device, whose name the kernel may have chosen.
            name = ioctl::identity(&fd).map_err(fail("get the interface's name (TUNGETIFF)"))?.name;
            fds.push(fd);
        }
        self.finish(fds)
    }

    /// Configures the device to which these descriptors are attached.
    fn finish(self, fds: Vec<OwnedFd>) -> Result<Tun, OpenError> {
        let mut device = self.name;
        let fail = |device: &String, action| {
            let device = device.clone();
            move |source| OpenError { device, action, source }
        };
        let wanted_framing =
            if self.layer == Layer::Ethernet { Framing::TAP } else { Framing::TUN };
        let (mut framing, mut known) = (None, Offloads::NONE);
        for fd in &fds {
            let identity =
                ioctl::identity(fd).map_err(fail(&device, "get the interface (TUNGETIFF)"))?;
            device = identity.name;
            if identity.layer != self.layer {
                let source = io::Error::new(
                    io::ErrorKind::Unsupported,
                    "it is a TAP device, whose packets are Ethernet frames",
                );
                return Err(OpenError { device, action: "use the descriptor", source });
            }
            ioctl::set_nonblocking(fd)
                .map_err(fail(&device, "make the descriptor nonblocking (F_SETFL)"))?;
            if identity.has_header {
                // The header is set first, since it describes the offloads.
                ioctl::set_header(fd, wanted_framing.header_length())
                    .map_err(fail(&device, "set the header length (TUNSETVNETHDRSZ)"))?;
                framing = Some(wanted_framing);
                // The offloads of one queue apply to the whole device.
                known = set_supported_offloads(|offloads| ioctl::set_offloads(fd, offloads));
            }
        }
        let interface =
            TunInterface::new(device.clone()).map_err(fail(&device, "open a socket (socket)"))?;
        // The kernel always accepts TCP super-packets; it accepts those of UDP if it can deliver
        // them.
        let on = if framing.is_some() {
            Offloads { udp: known.udp, ..Offloads::ALL }
        } else {
            Offloads::NONE
        };
        let switches = Switches::new(on);
        let queues = fds.into_iter().map(|fd| Queue::new(fd, framing, switches.clone())).collect();
        let mut tun = Tun { interface, queues, switches, offloads: known };
        let wanted = intersection(known, self.offloads);
        if wanted != known {
            tun.set_offloads(wanted).map_err(fail(&device, "set the offloads (TUNSETOFFLOAD)"))?;
        }
        if let Some(mtu) = self.mtu {
            tun.interface.set_mtu(mtu).map_err(fail(&device, "set the MTU (SIOCSIFMTU)"))?;
        }
        if self.up {
            tun.interface
                .set_up()
                .map_err(fail(&device, "switch the interface on (SIOCSIFFLAGS)"))?;
        }
        Ok(tun)
    }
}

/// The sets of offloads that kernels support, from newer to older kernels.
const OFFLOAD_SETS: [Offloads; 4] =
    [Offloads::ALL, Offloads::TCP, Offloads::CHECKSUM, Offloads::NONE];

/// Sets the largest set of offloads that the kernel supports, and returns it.
fn set_supported_offloads(mut set: impl FnMut(Offloads) -> io::Result<()>) -> Offloads {
    OFFLOAD_SETS.into_iter().find(|offloads| set(*offloads).is_ok()).unwrap_or_default()
}

/// Returns the offloads that are in both sets.
const fn intersection(a: Offloads, b: Offloads) -> Offloads {
    Offloads {
        checksum: a.checksum && b.checksum,
        tcp4: a.tcp4 && b.tcp4,
        tcp6: a.tcp6 && b.tcp6,
        udp: a.udp && b.udp,
    }
}

impl Tun {
    /// Creates the device `name`, or attaches to it if it exists, with one queue and all offloads
    /// that the kernel supports, and switches it on. `%d` in the name stands for the first free
    /// number.
    ///
    /// # Errors
    /// [`OpenError`] with the action that failed.
    pub fn open(name: &str) -> Result<Tun, OpenError> {
        Self::builder(name).open()
    }

    /// Returns options for opening the device `name`.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.to_owned(),
            layer: Layer::Ip,
            queues: 1,
            mtu: None,
            up: true,
            offloads: Offloads::ALL,
        }
    }

    /// Uses descriptors that are attached to a device already, one per queue: from another process,
    /// or from Android's `VpnService`. They become nonblocking, also for other users of the same
    /// descriptors.
    ///
    /// The device must have been opened with `IFF_NO_PI`; the kernel does not report this. A device
    /// that was opened without `IFF_VNET_HDR` has no super-packets: each packet is read and written
    /// by itself, and [`Tun::offloads`] and [`Switches::on`] are empty.
    ///
    /// # Errors
    /// [`OpenError`] if a descriptor is not that of a TUN device; TAP devices are refused too.
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> Result<Tun, OpenError> {
        let fds: Vec<_> = fds.into_iter().collect();
        let builder = Builder { up: false, ..Self::builder("") };
        if fds.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "there is no descriptor");
            return Err(OpenError { device: builder.name, action: "use the descriptor", source });
        }
        builder.finish(fds)
    }

    /// Returns the name that the interface had when the device was opened.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// Returns the offloads of packets that are read: those requested, as far as the kernel
    /// supports them.
    pub const fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Changes the offloads of packets that are read, for all queues.
    ///
    /// # Errors
    /// `EINVAL` if the kernel does not support all of them; then nothing is changed.
    pub fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        match self.queues.first() {
            // Offloads need a header.
            Some(queue) if queue.framing().is_some() => ioctl::set_offloads(queue, offloads)?,
            _ if offloads == Offloads::NONE => {}
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the device was opened without IFF_VNET_HDR",
                ));
            }
        }
        self.offloads = offloads;
        Ok(())
    }

    /// Returns the settings that select which super-packets are written. All writers of the device
    /// share them.
    pub const fn switches(&self) -> &Switches {
        &self.switches
    }

    /// Returns the interface's current MTU in bytes.
    ///
    /// # Errors
    /// `ENODEV` if the interface is gone, renamed, or moved to another network namespace.
    pub fn mtu(&self) -> io::Result<u32> {
        self.interface.mtu()
    }

    /// Sets the interface's MTU in bytes.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EINVAL` if the device does not accept this MTU; `ENODEV`
    /// as for [`mtu`](Self::mtu).
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.interface.set_mtu(mtu)
    }

    /// Returns the queues; there is at least one.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the queues, for example one per thread. The device exists as long as one of them, or
    /// a reader or writer of one, exists.
    pub fn into_queues(self) -> Vec<Queue> {
        self.queues
    }

    /// Returns a reader and a writer of the first queue, and closes the others.
    ///
    /// # Panics
    /// Never: there is a first queue.
    pub fn split<B: AsRef<[u8]>>(self) -> (Reader<Queue>, Writer<Queue, B>) {
        self.into_first_queue().split()
    }

    pub(crate) fn into_first_queue(self) -> Queue {
        self.queues.into_iter().next().expect("a device is opened with at least one queue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_supported_set_of_offloads_is_set() {
        let kernels: [(&str, Offloads, usize); 4] = [
            ("Linux from 6.2 on", Offloads::ALL, 1),
            ("one before, which refuses TUN_F_USO4", Offloads::TCP, 2),
            ("one that segments nothing", Offloads::CHECKSUM, 3),
            ("one that refuses checksums", Offloads::NONE, 4),
        ];
        for (kernel, knows, calls) in kernels {
            let (mut asked, mut now) = (0, None);
            let found = set_supported_offloads(|offloads| {
                asked += 1;
                if intersection(offloads, knows) != offloads {
                    return Err(io::Error::from_raw_os_error(22));
                }
                now = Some(offloads);
                Ok(())
            });
            assert_eq!((found, now, asked), (knows, Some(knows), calls), "{kernel}");
        }
        assert_eq!(
            set_supported_offloads(|_| Err(io::Error::from_raw_os_error(25))),
            Offloads::NONE,
            "no such call"
        );
    }
}
