//! TAP and TUN devices: creates them or attaches to them, probes the kernel's offloads, and finds a
//! device again after it was renamed or moved.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use superpacket::packet::Layer;
use superpacket::virtio::{ByteOrder, Format, Header, Offload, VirtioError, gso_type};
use superpacket::wire::MAX_HEADER;

use super::offload::HostOffloads;
use super::options::TapOptions;
use crate::counters::SharedCounters;
use crate::interface::NetworkInterface;
use crate::system::{TunKind, TunQueue, open_tun};
use crate::{LinkState, PortCounters, PortError, PortState};

/// An open TAP or TUN device, together with its queues.
#[derive(Debug)]
pub(super) struct TapDevice {
    /// The port's name: the one that was given, or the port string with the interface's real name.
    pub(super) text: String,
    pub(super) kind: TunKind,
    /// The format of the virtio header before each packet.
    pub(super) format: Format,
    /// The byte order of the virtio header before each packet.
    pub(super) order: ByteOrder,
    /// Whether the kernel accepts UDP super-packets (Linux 6.2).
    pub(super) takes_udp: bool,
    pub(super) counters: SharedCounters,
    queues: Vec<TunQueue>,
    /// The device's interface as it was last found, and its state.
    current: Mutex<FoundInterface>,
}

#[derive(Debug)]
struct FoundInterface {
    interface: NetworkInterface,
    state: PortState,
    drops: DropCounter,
}

impl TapDevice {
    /// Creates the device, or attaches to it.
    ///
    /// # Errors
    /// [`PortError`] if a system call fails, or if the kernel lacks a requested offload.
    pub(super) fn open(
        text: &str,
        kind: TunKind,
        name: &str,
        options: &TapOptions,
    ) -> Result<Self, PortError> {
        let system = |action| move |error: io::Error| PortError::system(text, action, error);
        let (found, first) = attach_first(text, kind, name, options.queues > 1)?;
        let identity = first.identity().map_err(system("ask for the interface (TUNGETIFF)"))?;
        let (format, takes_udp) = set_up_offloads(&first, text, options)?;
        let mut queues = vec![first];
        for _ in 1..options.queues {
            let queue = attach(text, kind, &identity.name, true)?;
            queues.push(queue.map_err(|error| refused(text, kind, true, None, error))?);
        }
        if let Some(persist) = options.persist.filter(|persist| *persist != identity.persistent) {
            queues[0].set_persistent(persist).map_err(system("keep the device (TUNSETPERSIST)"))?;
        }
        let mut interface = NetworkInterface::open(text, &identity.name)?;
        if let Some(mtu) = options.mtu {
            interface.set_mtu(mtu).map_err(system("set the MTU (RTM_SETLINK)"))?;
        }
        let is_new = found.is_none_or(|found| found.index() != interface.index());
        if options.up.unwrap_or(is_new) {
            interface.set_up(true).map_err(system("switch the interface on (RTM_SETLINK)"))?;
        }
        let state = interface.state();
        let drops = DropCounter::open(&identity.name);
        Ok(TapDevice {
            text: if name == identity.name {
                text.to_owned()
            } else {
                text.replacen(name, &identity.name, 1)
            },
            kind,
            format,
            order: options.order.unwrap_or(ByteOrder::NATIVE),
            takes_udp,
            counters: SharedCounters::default(),
            queues,
            current: Mutex::new(FoundInterface { interface, state, drops }),
        })
    }

    pub(super) const fn layer(&self) -> Layer {
        match self.kind {
            TunKind::Tap => Layer::Ethernet,
            TunKind::Tun => Layer::Ip,
        }
    }

    /// Returns the number of queues, at least 1.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns a queue's descriptor, for reading and writing.
    #[inline]
    pub(super) fn queue(&self, queue: u16) -> BorrowedFd<'_> {
        self.queues[usize::from(queue)].as_fd()
    }

    /// Returns the error for a device that no longer exists.
    pub(super) fn gone(&self) -> PortError {
        PortError::Gone { port: self.text.clone() }
    }

    /// Interprets the virtio header of a packet. `bytes` begins with the header.
    #[inline]
    pub(super) fn offload(&self, bytes: &[u8], packet: &[u8]) -> Result<Offload, VirtioError> {
        let header = Header::read(bytes, self.format, self.order)?;
        if header.flags == 0 && header.gso_type == gso_type::NONE {
            return Ok(Offload::default());
        }
        header.offload(
            self.format,
            &packet[..packet.len().min(MAX_HEADER)],
            packet.len(),
            self.layer(),
        )
    }

    /// Returns the device's present state. It may be down, renamed, moved to another network
    /// namespace, or deleted.
    pub(super) fn state(&self) -> PortState {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.state = match current.interface.state() {
            PortState { link: LinkState::Gone, .. } => self.look_for(&mut current),
            state => state,
        };
        current.state
    }

    /// Searches for the interface after it has disappeared. A queue tells whether the device still
    /// exists, and in which network namespace.
    fn look_for(&self, current: &mut FoundInterface) -> PortState {
        let gone = PortState { link: LinkState::Gone, mtu: 0 };
        let Ok(identity) = self.queues[0].identity() else { return gone };
        match self.find(&identity.name) {
            Ok(interface) => {
                current.interface = interface;
                current.interface.state()
            }
            // The device is in a namespace that this process may not enter. A write will show
            // whether it is up.
            Err(_) => PortState { link: LinkState::Up, mtu: current.state.mtu },
        }
    }

    /// Opens the interface in the device's present network namespace, by a thread that enters it.
    fn find(&self, name: &str) -> Result<NetworkInterface, PortError> {
        let system = |action| move |error: io::Error| PortError::system(&self.text, action, error);
        let namespace = self.queues[0]
            .namespace()
            .map_err(system("ask for the network namespace (TUNGETDEVNETNS)"))?;
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| system("enter the network namespace (setns)")(error.into()))?;
            NetworkInterface::open(&self.text, name)
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|_| Err(self.gone()))
    }

    /// Returns the interface's Ethernet address.
    pub(super) fn hardware_address(&self) -> Option<[u8; 6]> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.interface.link().ok().flatten()?.hardware_address
    }

    pub(super) fn counters(&self) -> PortCounters {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let FoundInterface { interface, drops, .. } = &mut *current;
        self.counters.read(drops.read(interface.name()))
    }
}

/// Number of attempts to attach to a busy device.
const MAX_ATTEMPTS: u32 = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Attaches the first queue, and creates the device if necessary. Also returns the interface, if it
/// existed before.
///
/// A device that was just closed may be busy for a moment: a child process forked by another thread
/// holds it until it executes its program.
fn attach_first(
    text: &str,
    kind: TunKind,
    name: &str,
    several: bool,
) -> Result<(Option<NetworkInterface>, TunQueue), PortError> {
    let mut attempt = 1;
    loop {
        let found = NetworkInterface::open(text, name).ok();
        match attach(text, kind, name, several)? {
            Ok(queue) => return Ok((found, queue)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < MAX_ATTEMPTS => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            Err(error) => return Err(refused(text, kind, several, found.as_ref(), error)),
        }
        attempt += 1;
    }
}

/// Attaches one queue to the device `name`. The inner result is that of the system call
/// `TUNSETIFF`.
fn attach(
    text: &str,
    kind: TunKind,
    name: &str,
    several: bool,
) -> Result<io::Result<TunQueue>, PortError> {
    let fd = open_tun().map_err(|error| PortError::system(text, "open /dev/net/tun", error))?;
    Ok(TunQueue::attach(fd, name, kind, several))
}

/// Sets the virtio header and the offloads of the device. Returns the header's format, and whether
/// the kernel supports UDP super-packets.
///
/// The super-packets that the kernel accepts depend only on its version and on the header's length.
/// `TUNSETOFFLOAD` reveals the version.
fn set_up_offloads(
    queue: &TunQueue,
    text: &str,
    options: &TapOptions,
) -> Result<(Format, bool), PortError> {
    let system = |action| move |error: io::Error| PortError::system(text, action, error);
    let set_header = |format| {
        queue
            .set_header(format, options.order)
            .map_err(system("choose the header (TUNSETVNETHDRSZ, TUNSETVNETLE)"))
    };
    // The header is set first: with tunnel offloads and a header too short for them, every read
    // fails with EFAULT.
    set_header(Format::Tunnel)?;
    let taken = |offloads: &HostOffloads| queue.set_offloads(offloads.bits()).is_ok();
    let known = HostOffloads::LADDER.into_iter().find(taken).unwrap_or(HostOffloads::NONE);
    let format =
        options.header.unwrap_or(if known.has_tunnels() { Format::Tunnel } else { Format::Plain });
    let possible = if format == Format::Tunnel { known } else { known.without_tunnels() };
    let wanted = options.offloads.unwrap_or(possible);
    if !possible.contain(wanted) {
        let reason = format!(
            "the kernel, or a header of {} bytes, has no {}",
            format.length(),
            wanted.beyond(possible)
        );
        return Err(PortError::Unsupported { port: text.into(), reason });
    }
    queue
        .set_offloads(wanted.bits())
        .map_err(system("choose what the host may leave undone (TUNSETOFFLOAD)"))?;
    set_header(format)?;
    Ok((format, known.has_udp()))
}

/// Returns the error that explains why the kernel refused to attach a queue to a device.
fn refused(
    text: &str,
    kind: TunKind,
    several: bool,
    found: Option<&NetworkInterface>,
    error: io::Error,
) -> PortError {
    let unsupported = |reason| PortError::Unsupported { port: text.into(), reason };
    let queues = if several { "several queues" } else { "one queue" };
    match (error.raw_os_error(), found) {
        (Some(libc::EINVAL), Some(interface)) => match interface.ethtool().driver() {
            Ok(driver) if driver == "tun" => unsupported(format!(
                "{:?} is there, and is not a {} device with {queues}",
                interface.name(),
                kind.name()
            )),
            Ok(driver) => unsupported(format!(
                "{:?} is there, and is not a {} device but {driver}",
                interface.name(),
                kind.name()
            )),
            Err(_) => unsupported(format!(
                "{:?} is there, and is not a {} device",
                interface.name(),
                kind.name()
            )),
        },
        (Some(libc::EBUSY), _) => PortError::system(
            text,
            "attach to the device, which another process has open (TUNSETIFF)",
            error,
        ),
        (Some(libc::E2BIG), _) => PortError::system(
            text,
            "attach to the device, all of whose queues are taken (TUNSETIFF)",
            error,
        ),
        _ => PortError::system(text, "make or attach to the device (TUNSETIFF)", error),
    }
}

/// Reads the number of packets that the host could not put into the queues, from `/proc/net/dev` of
/// the network namespace in which the port was opened.
#[derive(Debug)]
struct DropCounter {
    file: Option<File>,
    before: u64,
    last: u64,
}

impl DropCounter {
    fn open(name: &str) -> Self {
        // The thread's file, since threads may be in different namespaces. An open file keeps its
        // namespace.
        let mut counter =
            DropCounter { file: File::open("/proc/thread-self/net/dev").ok(), before: 0, last: 0 };
        counter.before = counter.absolute(name).unwrap_or(0);
        counter
    }

    fn read(&mut self, name: &str) -> u64 {
        if let Some(now) = self.absolute(name) {
            // A later device with the same name starts at 0.
            self.before = self.before.min(now);
            self.last = now - self.before;
        }
        self.last
    }

    fn absolute(&self, name: &str) -> Option<u64> {
        let file = self.file.as_ref()?;
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match file.read_at(&mut piece, text.len() as u64).ok()? {
                0 => break,
                length => text.extend_from_slice(&piece[..length]),
            }
        }
        dropped(&String::from_utf8_lossy(&text), name)
    }
}

/// Returns the interface's transmit drops, which are packets that the host could not hand over,
/// from the text of `/proc/net/dev`. After the name, the columns are eight for receiving, then
/// bytes, packets, errors and drops.
fn dropped(text: &str, name: &str) -> Option<u64> {
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_by_name_and_column() {
        let text = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
                    \x20 tap0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n tap01:1 2 3 4 5 6 7 8 9 10 11 99 13 14 15 16\n";
        assert_eq!(dropped(text, "tap0"), Some(12));
        assert_eq!(dropped(text, "tap01"), Some(99));
        assert_eq!(dropped(text, "tap"), None);
    }
}
