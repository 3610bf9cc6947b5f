//! The steps of opening an AF_XDP port, which try the interface's capabilities from the best to the
//! least.

use std::io;
use std::sync::Arc;

use rustix::net::xdp::SocketAddrXdpFlags;

use super::btf::kernel_function;
use super::option::{AttachOption, AutoSwitch, CopyMode, XdpOptions};
use super::program::{AttachMode, HashFunction, Redirect};
use super::queue::XdpQueue;
use super::socket::{CallError, Socket, sharing_keeps_several};
use super::umem::{Lease, Umem};
use crate::interface::{InterfaceInfo, NetworkInterface};
use crate::system::bpf::Attachment;
use crate::{PortError, PortSpec};

/// Describes the action that failed in errors about the allocation of frame memory.
const MAPPING: &str = "mapping memory for frames (mmap)";

/// The inputs of all steps of opening an AF_XDP port.
pub(super) struct Opening<'a> {
    pub(super) spec: &'a PortSpec,
    pub(super) options: XdpOptions,
    pub(super) link: InterfaceInfo,
    pub(super) driver: &'a str,
}

impl Opening<'_> {
    pub(super) fn unsupported(&self, reason: String) -> PortError {
        PortError::Unsupported { port: self.spec.name().into(), reason }
    }

    pub(super) fn system(&self, action: &'static str, error: impl Into<io::Error>) -> PortError {
        PortError::system(self.spec.name(), action, error)
    }

    /// Returns the numbers of the queues to use.
    pub(super) fn queues(&self, interface: &NetworkInterface) -> Result<Vec<u32>, PortError> {
        // A driver that does not report its queues in use (TUN, bridges) has at least one; `queue`
        // can name another.
        let used = interface.ethtool().channels().map(|channels| channels.rx);
        match (self.options.queue, used) {
            (Some(queue), Ok(used)) if queue >= used => {
                Err(self.unsupported(format!("queue={queue}: the interface has {used} receive queues in use, the first of which is 0")))
            }
            (Some(queue), _) => Ok(vec![queue]),
            (None, used) => Ok((0..used.unwrap_or(1).max(1)).collect()),
        }
    }

    /// Loads the XDP program for `queues`. Also returns whether it accepts frames of several
    /// buffers.
    pub(super) fn program(
        &self,
        queues: &[u32],
        needed: bool,
    ) -> Result<(Redirect, bool), PortError> {
        let map = || {
            let size = queues.iter().max().map_or(1, |last| last + 1);
            Redirect::map(size)
                .map_err(|error| self.system("making a map of sockets (BPF_MAP_CREATE)", error))
        };
        let fragments = self.options.multi_buffer != AutoSwitch::Off;
        let hash = self.options.hash.then(|| self.hash()).transpose()?;
        let refused = match Redirect::load(map()?, fragments, hash.as_ref()) {
            Ok(redirect) => return Ok((redirect, fragments)),
            Err(refused) => refused,
        };
        // Kernels before 5.18 do not know the flag.
        if fragments
            && !needed
            && refused.error.raw_os_error() == Some(libc::EINVAL)
            && hash.is_none()
            && let Ok(redirect) = Redirect::load(map()?, false, None)
        {
            return Ok((redirect, false));
        }
        Err(match refused.log.is_empty() {
            _ if hash.is_some() && refused.error.raw_os_error() != Some(libc::EPERM) => self.unsupported(format!(
                "hash=on: the driver {:?} gives no hash, or this kernel is older than Linux 6.3 (BPF_PROG_LOAD: {}{}{})",
                self.driver,
                refused.error,
                if refused.log.is_empty() { "" } else { "; its verifier says: " },
                refused.log
            )),
            true => self.system("loading the program that hands frames over (BPF_PROG_LOAD)", refused.error),
            false => self.unsupported(format!(
                "the kernel refused the program that hands frames over (BPF_PROG_LOAD): {}; its verifier says: {}",
                refused.error, refused.log
            )),
        })
    }

    /// Finds the function with which the program reads flow hashes.
    fn hash(&self) -> Result<HashFunction, PortError> {
        let function = kernel_function("bpf_xdp_metadata_rx_hash");
        let function = function.map_err(|error| {
            self.unsupported(format!("hash=on needs Linux 6.3 with BTF type information: {error}"))
        })?;
        Ok(HashFunction { function, interface: self.link.index })
    }

    /// Attaches the XDP program in the mode that the options select.
    pub(super) fn attach(
        &self,
        redirect: &Redirect,
        interface: &mut NetworkInterface,
    ) -> Result<(Attachment, AttachMode), PortError> {
        let slots: &[AttachMode] = match self.options.attach {
            AttachOption::Auto if !self.options.hash => &[AttachMode::Native, AttachMode::Generic],
            AttachOption::Auto | AttachOption::Native => &[AttachMode::Native],
            AttachOption::Generic => &[AttachMode::Generic],
        };
        let mut refusal = None;
        for &slot in slots {
            let error = match redirect.attach(self.link.index, slot) {
                Ok(link) => return Ok((link, slot)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => return Err(self.taken(interface)),
                Some(libc::ENODEV) => {
                    return Err(PortError::Gone { port: self.spec.name().into() });
                }
                Some(libc::EPERM | libc::EACCES) => {
                    return Err(self.system("attaching an XDP program (BPF_LINK_CREATE)", error));
                }
                _ if slots.len() > 1 && slot == AttachMode::Native => {
                    tracing::info!(port = self.spec.name(), driver = self.driver, %error, "the driver accepts no XDP program: attaching in generic mode");
                }
                _ => {}
            }
            refusal = Some((slot, error));
        }
        Err(match refusal {
            Some((slot, error)) => self.no_slot(slot, &error),
            None => self.unsupported("no mode to attach a program in".into()),
        })
    }

    /// Returns the error for an interface that has another XDP program.
    fn taken(&self, interface: &mut NetworkInterface) -> PortError {
        let program = interface.link().ok().flatten().and_then(|link| link.xdp_program);
        let which = program.map_or_else(String::new, |number| format!(" (number {number})"));
        let name = self.spec.device();
        self.unsupported(format!(
            "another XDP program{which} is attached to {name}: stop whoever attached it, or take it off (ip link set dev {name} xdp off)"
        ))
    }

    fn no_slot(&self, slot: AttachMode, error: &io::Error) -> PortError {
        let why = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                format!(": the driver {:?} has no XDP: mode=generic needs none", self.driver)
            }
            Some(libc::ERANGE) => format!(
                ": the MTU of {} is too large for the driver, or veth's other end's is",
                self.link.mtu
            ),
            Some(libc::EINVAL) => ": links of XDP programs need Linux 5.9".into(),
            _ => String::new(),
        };
        self.unsupported(format!(
            "attaching an XDP program with mode={slot} (BPF_LINK_CREATE): {error}{why}"
        ))
    }

    /// Opens and binds a socket for each queue. Also returns whether frames may have several
    /// chunks.
    pub(super) fn bind(
        &self,
        numbers: &[u32],
        slot: AttachMode,
        needed: bool,
    ) -> Result<(Vec<Arc<XdpQueue>>, bool), PortError> {
        let several = self.options.multi_buffer == AutoSwitch::On || needed;
        let mut attempts = Vec::new();
        if self.options.copying != CopyMode::Copy && slot == AttachMode::Native {
            attempts.push((SocketAddrXdpFlags::XDP_ZEROCOPY, several));
        }
        if self.options.copying != CopyMode::Zero {
            if self.options.multi_buffer != AutoSwitch::Off {
                attempts.push((SocketAddrXdpFlags::XDP_COPY, true));
            }
            if !several {
                attempts.push((SocketAddrXdpFlags::XDP_COPY, false));
            }
        }
        // Keeps the memory between attempts, since pinning it takes a while.
        let XdpOptions { frames, frame_size, .. } = self.options;
        let mapping = |error: io::Error| self.system(MAPPING, error);
        let _umem = Lease::take(frame_size, frames, numbers.len())
            .map_err(mapping)?
            .first()
            .map(|lease| Arc::clone(lease.umem()));
        let mut refusal =
            self.unsupported("copy=zero needs mode=native, which the driver does not have".into());
        for (flags, several) in attempts {
            match self.sockets(numbers, flags, several) {
                Ok(queues) => return Ok((queues, several)),
                Err(CallError { action, error }) => {
                    let number = error.raw_os_error();
                    refusal = match number {
                        Some(libc::ENODEV | libc::ENXIO) => PortError::Gone { port: self.spec.name().into() },
                        Some(libc::ENETDOWN) => PortError::Down { port: self.spec.name().into() },
                        Some(libc::EOPNOTSUPP) if flags == SocketAddrXdpFlags::XDP_ZEROCOPY => self.unsupported(format!(
                            "copy=zero: the driver {:?} cannot move frames itself ({error}): use copy=auto",
                            self.driver
                        )),
                        _ => self.system(action, error),
                    };
                    // With another copy mode, the call would fail in the same way.
                    if matches!(
                        number,
                        Some(
                            libc::EBUSY
                                | libc::EPERM
                                | libc::ENODEV
                                | libc::ENXIO
                                | libc::ENETDOWN
                                | libc::ENOBUFS
                                | libc::ENOMEM
                        )
                    ) {
                        break;
                    }
                }
            }
        }
        Err(refusal)
    }

    fn sockets(
        &self,
        numbers: &[u32],
        copying: SocketAddrXdpFlags,
        several: bool,
    ) -> Result<Vec<Arc<XdpQueue>>, CallError> {
        let XdpOptions { frames, frame_size, .. } = self.options;
        let leases = Lease::take(frame_size, frames, numbers.len()).map_err(unmapped)?;
        let flags = if several { copying | SocketAddrXdpFlags::XDP_USE_SG } else { copying };
        let mut queues = Vec::with_capacity(numbers.len());
        for (&number, lease) in numbers.iter().zip(leases) {
            let queue = self.socket(number, lease, flags, &queues)?;
            queue.send().set_gather(self.options.gather);
            queues.push(queue);
        }
        Ok(queues)
    }

    /// Opens and binds the socket of a queue. The socket shares the memory registration of another
    /// socket with the same bind flags, if there is one, and otherwise registers the memory again.
    /// `opened` are the port's queues whose sockets are bound already.
    fn socket(
        &self,
        number: u32,
        lease: Lease,
        flags: SocketAddrXdpFlags,
        opened: &[Arc<XdpQueue>],
    ) -> Result<Arc<XdpQueue>, CallError> {
        let umem = Arc::clone(lease.umem());
        let mut lease = Some(lease);
        for shared in sharing(&umem, flags, opened) {
            match self.attempt(number, lease.take(), &umem, flags, Some(&shared)) {
                // The other interface no longer exists, or the kernel is older than Linux 5.10.
                Err(CallError { error, .. }) if !is_about_queue(&error) => {
                    tracing::debug!(port = self.spec.name(), queue = number, %error, "the memory of another socket cannot be shared");
                }
                result => return result,
            }
        }
        self.attempt(number, lease, &umem, flags, None)
    }

    fn attempt(
        &self,
        number: u32,
        lease: Option<Lease>,
        umem: &Arc<Umem>,
        flags: SocketAddrXdpFlags,
        shared: Option<&XdpQueue>,
    ) -> Result<Arc<XdpQueue>, CallError> {
        let lease = lease.map_or_else(|| Lease::again(umem), Ok).map_err(unmapped)?;
        let own = shared.is_none().then(|| &**lease.umem());
        let socket = Socket::open(own, self.options.ring_size())?;
        socket.tune(self.options.busy_poll);
        let action =
            "binding a socket to a queue (bind; EBUSY: another AF_XDP socket has the queue)";
        XdpQueue::bind(self.link.index, number, lease, socket, flags, shared)
            .map_err(|error| CallError { action, error })
    }
}

fn unmapped(error: io::Error) -> CallError {
    CallError { action: MAPPING, error }
}

/// Returns the queues whose registration of `umem` with the kernel can be shared by a socket that
/// is bound with `flags`.
fn sharing(
    umem: &Arc<Umem>,
    flags: SocketAddrXdpFlags,
    opened: &[Arc<XdpQueue>],
) -> Vec<Arc<XdpQueue>> {
    let several = flags.contains(SocketAddrXdpFlags::XDP_USE_SG);
    if several && !sharing_keeps_several() {
        return Vec::new();
    }
    // The kernel does not check whether another zero-copy device supports frames of several chunks
    // when it is bound to a UMEM that uses them.
    let mut queues = if several && flags.contains(SocketAddrXdpFlags::XDP_ZEROCOPY) {
        opened.to_vec()
    } else {
        XdpQueue::of(umem)
    };
    queues.retain(|queue| queue.flags() == flags);
    queues
}

/// Returns whether the error of `bind` is about the queue or its interface, so that binding with
/// other memory would fail too.
fn is_about_queue(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EPERM | libc::ENODEV | libc::ENXIO | libc::ENETDOWN)
    )
}
