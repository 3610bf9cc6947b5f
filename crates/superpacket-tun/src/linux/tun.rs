//! A TUN or TAP device: how it is made or attached to, and what was got.

use std::io;
use std::os::fd::OwnedFd;

use superpacket::Framing;

use super::interface::Interface;
use super::ioctl;
use super::queue::Queue;
use crate::{Layer, Offloads, Reader, Switches, Writer};

/// A TUN device, or a [TAP device](Builder::layer), with all of its queues that this process has.
///
/// Making one takes `CAP_NET_ADMIN`. Addresses and routes are given to it as to any interface, by
/// `ip` or rtnetlink.
///
/// ```no_run
/// use superpacket_tun::Tun;
///
/// let tun = Tun::builder("vpn0").mtu(1420).open()?;
/// println!("{}: MTU {}, read as super-packets: {}, written: {}", tun.name(), tun.mtu()?, tun.offloads(), tun.switches().on());
/// let (mut reader, mut writer) = tun.split();
/// // A thread that writes what the tunnel delivers.
/// std::thread::spawn(move || {
///     loop {
///         let opened: Vec<Vec<u8>> = Vec::new(); // What the tunnel delivers at once, each packet in a buffer.
///         opened.into_iter().for_each(|packet| writer.push(packet));
///         writer.flush()?;
/// #       break Ok::<(), std::io::Error>(());
///     }
/// });
/// // One that reads, and seals.
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
    interface: Interface,
    queues: Vec<Queue>,
    switches: Switches,
    offloads: Offloads,
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
#[error("TUN device {device:?}: {action}: {source}")]
pub struct OpenError {
    /// The name that was asked for, or that the device has.
    pub device: String,
    /// What failed, with the system call's name.
    pub action: &'static str,
    /// Why.
    pub source: io::Error,
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        io::Error::new(error.source.kind(), error)
    }
}

/// How a device is opened; see [`Tun::builder`].
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
    /// Opens a TAP device, whose packets are Ethernet frames, with [`Layer::Ethernet`]: to be
    /// bridged, or for a stack with addresses of its own. A TUN device, whose packets are IP
    /// packets, unless it is said. [`Queue::framing`] tells which it is.
    #[must_use]
    pub fn layer(self, layer: Layer) -> Self {
        Builder { layer, ..self }
    }

    /// Opens so many queues, 1 to 256, for as many threads (`IFF_MULTI_QUEUE` from 2 on). One
    /// unless it is said.
    #[must_use]
    pub fn queues(self, queues: u16) -> Self {
        Builder { queues, ..self }
    }

    /// Sets the MTU in bytes, as IP packets count: the longest packet that the tunnel carries. As
    /// it is, or 1500, unless it is said.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Builder { mtu: Some(mtu), ..self }
    }

    /// Switches the interface on, which is done unless `false` is said.
    #[must_use]
    pub fn up(self, up: bool) -> Self {
        Builder { up, ..self }
    }

    /// Lets the host hand over no more than this. All that the kernel knows unless it is said.
    #[must_use]
    pub fn offloads(self, offloads: Offloads) -> Self {
        Builder { offloads, ..self }
    }

    /// Makes the device, or attaches to it if it is there.
    ///
    /// # Errors
    /// [`OpenError`] names what the system refused.
    pub fn open(self) -> Result<Tun, OpenError> {
        let fail = |action| {
            let device = self.name.clone();
            move |source| OpenError { device, action, source }
        };
        if !(1..=256).contains(&self.queues) {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not from 1 to 256", self.queues),
            );
            return Err(fail("number of queues")(source));
        }
        let mut fds = Vec::new();
        let mut name = self.name.clone();
        for _ in 0..self.queues {
            let fd = ioctl::open_clone_device().map_err(fail("open /dev/net/tun"))?;
            ioctl::attach(&fd, &name, self.layer, self.queues > 1)
                .map_err(fail("make or attach to the device (TUNSETIFF)"))?;
            // The others go to the device that has been made, whose name the kernel may have
            // chosen.
            name = ioctl::identity(&fd)
                .map_err(fail("ask for the interface's name (TUNGETIFF)"))?
                .name;
            fds.push(fd);
        }
        self.finish(fds)
    }

    /// Sets up the device that these descriptors are attached to.
    fn finish(self, fds: Vec<OwnedFd>) -> Result<Tun, OpenError> {
        let mut device = self.name;
        let fail = |device: &String, action| {
            let device = device.clone();
            move |source| OpenError { device, action, source }
        };
        let in_front = if self.layer == Layer::Ethernet { Framing::TAP } else { Framing::TUN };
        let (mut framing, mut known) = (None, Offloads::NONE);
        for fd in &fds {
            let identity =
                ioctl::identity(fd).map_err(fail(&device, "ask for the interface (TUNGETIFF)"))?;
            device = identity.name;
            if identity.layer != self.layer {
                let source = io::Error::new(
                    io::ErrorKind::Unsupported,
                    "it is a TAP device, whose packets are Ethernet frames",
                );
                return Err(OpenError { device, action: "use its descriptor", source });
            }
            ioctl::set_nonblocking(fd).map_err(fail(&device, "switch off waiting (F_SETFL)"))?;
            if identity.has_header {
                // The header goes first: it is what offloads are described by.
                ioctl::set_header(fd, in_front.header_length())
                    .map_err(fail(&device, "choose the header (TUNSETVNETHDRSZ)"))?;
                framing = Some(in_front);
                // What one queue is told holds for the device.
                known = probe(|offloads| ioctl::set_offloads(fd, offloads));
            }
        }
        let interface =
            Interface::new(device.clone()).map_err(fail(&device, "open a socket (socket)"))?;
        // The kernel takes TCP super-packets in any case, UDP ones if it gives them.
        let on = if framing.is_some() {
            Offloads { udp: known.udp, ..Offloads::ALL }
        } else {
            Offloads::NONE
        };
        let switches = Switches::new(on);
        let queues = fds.into_iter().map(|fd| Queue::new(fd, framing, switches.clone())).collect();
        let mut tun = Tun { interface, queues, switches, offloads: known };
        let wanted = common(known, self.offloads);
        if wanted != known {
            tun.set_offloads(wanted)
                .map_err(fail(&device, "choose what the host may leave undone (TUNSETOFFLOAD)"))?;
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

/// From the most to the least, as kernels came to know them.
const LADDER: [Offloads; 4] = [Offloads::ALL, Offloads::TCP, Offloads::CHECKSUM, Offloads::NONE];

/// Sets the most that the kernel knows, and says what that is.
fn probe(mut set: impl FnMut(Offloads) -> io::Result<()>) -> Offloads {
    LADDER.into_iter().find(|offloads| set(*offloads).is_ok()).unwrap_or_default()
}

/// The offloads that are in both.
const fn common(a: Offloads, b: Offloads) -> Offloads {
    Offloads {
        checksum: a.checksum && b.checksum,
        tcp4: a.tcp4 && b.tcp4,
        tcp6: a.tcp6 && b.tcp6,
        udp: a.udp && b.udp,
    }
}

impl Tun {
    /// Makes the device `name`, or attaches to it if it is there, with one queue and all offloads
    /// that the kernel knows, and switches it on. In the name `%d` stands for the first number that
    /// is free.
    ///
    /// # Errors
    /// [`OpenError`] names what the system refused.
    pub fn open(name: &str) -> Result<Tun, OpenError> {
        Self::builder(name).open()
    }

    /// How the device `name` is to be opened.
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

    /// Uses descriptors that have been attached to a device, one for each queue: from another
    /// process, or from Android's `VpnService`. Reads and writes of these descriptors return in
    /// place of waiting from now on, also for whoever else has them.
    ///
    /// The device must have been opened with `IFF_NO_PI`, for which the kernel cannot be asked. One
    /// that was opened without `IFF_VNET_HDR` knows no super-packets: each packet is read
    /// and written by itself. [`Tun::offloads`] and [`Switches::on`] are empty then.
    ///
    /// # Errors
    /// [`OpenError`] if they are no TUN device's, or a TAP device's.
    pub fn from_fds(fds: impl IntoIterator<Item = OwnedFd>) -> Result<Tun, OpenError> {
        let fds: Vec<_> = fds.into_iter().collect();
        let builder = Builder { up: false, ..Self::builder("") };
        if fds.is_empty() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "there is none");
            return Err(OpenError { device: builder.name, action: "use its descriptor", source });
        }
        builder.finish(fds)
    }

    /// The interface's name, as it was when the device was opened.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// What the host leaves undone in packets that are read: what was asked for, as far as the
    /// kernel knows it.
    pub const fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Changes what the host leaves undone, for all queues at once.
    ///
    /// # Errors
    /// `EINVAL` if the kernel does not know some of it: it is as before then.
    pub fn set_offloads(&mut self, offloads: Offloads) -> io::Result<()> {
        match self.queues.first() {
            // Without a header nothing could be left undone.
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

    /// The switches for super-packets that are written, which all writers share.
    pub const fn switches(&self) -> &Switches {
        &self.switches
    }

    /// The interface's MTU in bytes, now.
    ///
    /// # Errors
    /// `ENODEV` if the interface is gone, renamed, or moved to another network namespace.
    pub fn mtu(&self) -> io::Result<u32> {
        self.interface.mtu()
    }

    /// Sets the interface's MTU in bytes.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, `EINVAL` for an MTU that the device does not take, `ENODEV`
    /// as with [`mtu`](Self::mtu).
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.interface.set_mtu(mtu)
    }

    /// The queues: at least one.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The queues, for a thread each. The device stays as long as one of them, or a reader or
    /// writer.
    pub fn into_queues(self) -> Vec<Queue> {
        self.queues
    }

    /// Makes a reader and a writer of the first queue, and closes the others.
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
    fn the_most_that_a_kernel_knows_is_set() {
        let kernels: [(&str, Offloads, usize); 4] = [
            ("Linux from 6.2 on", Offloads::ALL, 1),
            ("one before, which refuses TUN_F_USO4", Offloads::TCP, 2),
            ("one that segments nothing", Offloads::CHECKSUM, 3),
            ("one that refuses checksums", Offloads::NONE, 4),
        ];
        for (kernel, knows, calls) in kernels {
            let (mut asked, mut now) = (0, None);
            let found = probe(|offloads| {
                asked += 1;
                if common(offloads, knows) != offloads {
                    return Err(io::Error::from_raw_os_error(22));
                }
                now = Some(offloads);
                Ok(())
            });
            assert_eq!((found, now, asked), (knows, Some(knows), calls), "{kernel}");
        }
        assert_eq!(
            probe(|_| Err(io::Error::from_raw_os_error(25))),
            Offloads::NONE,
            "no such call"
        );
    }
}
