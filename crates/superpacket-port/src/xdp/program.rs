//! The XDP program that redirects an interface's frames to AF_XDP sockets, and its attachment.
//!
//! The program is attached by a link (`BPF_LINK_CREATE`, Linux 5.9). The kernel detaches it when
//! the link's descriptor is closed, even if the process is killed.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::instructions::program;
use crate::system::bpf::{
    AttachPoint, Attachment, LoadError, MapKind, Name, Program, ProgramKind, SocketMap,
};

// Flags of `linux/bpf.h` and `linux/if_link.h`.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The name of map and program as shown by `bpftool`.
const NAME: Name = *b"superpacket\0\0\0\0\0";

/// The place in the kernel at which an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachMode {
    /// The program runs in the driver.
    Native,
    /// The program runs in the kernel's network stack, after the driver.
    Generic,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            AttachMode::Native => "native",
            AttachMode::Generic => "generic",
        })
    }
}

/// The kernel function and the interface for reading the driver's flow hash. A program that reads
/// it is bound to one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashFunction {
    /// The number of `bpf_xdp_metadata_rx_hash` in this kernel.
    pub(super) function: i32,
    /// Index of the interface to which the program is bound.
    pub(super) interface: u32,
}

/// A loaded XDP program, and its map, which has one socket per queue.
#[derive(Debug)]
pub(super) struct Redirect {
    map: SocketMap,
    program: OwnedFd,
}

impl Redirect {
    /// Creates a map for the queues 0 to `queues - 1` (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`.
    pub(super) fn map(queues: u32) -> io::Result<SocketMap> {
        SocketMap::new(MapKind::Sockets, queues, NAME)
    }

    /// Loads the program that redirects frames to the sockets of `map` (`BPF_PROG_LOAD`). With
    /// `fragments`, it accepts frames of several buffers. With `hash`, it stores the device's flow
    /// hash before each frame.
    ///
    /// # Errors
    /// The system call's error and the verifier's messages: `EPERM` without `CAP_BPF` and
    /// `CAP_NET_ADMIN`; with `hash`, `EINVAL` for a driver without metadata or before Linux 6.3.
    pub(super) fn load(
        map: SocketMap,
        fragments: bool,
        hash: Option<&HashFunction>,
    ) -> Result<Self, LoadError> {
        let bound = if hash.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
        let several = if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 };
        let program = Program {
            kind: ProgramKind::Xdp,
            instructions: &program(map.number(), hash.map(|hash| hash.function)),
            // Kernel functions may be called only by programs under the GPL, which may be
            // dual-licensed.
            license: if hash.is_some() { c"Dual MIT/GPL" } else { c"MIT" },
            flags: bound | several,
            name: NAME,
            interface: hash.map_or(0, |hash| hash.interface),
        };
        Ok(Redirect { program: program.load()?, map })
    }

    /// Redirects the frames of `queue` to a socket (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// The system call's error.
    pub(super) fn set(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        self.map.set(queue, socket.as_fd().as_raw_fd())
    }

    /// Attaches the program to the interface with this index (`BPF_LINK_CREATE`).
    ///
    /// # Errors
    /// `EBUSY` or `EEXIST` if the interface has another program, `EOPNOTSUPP` if the driver has no
    /// XDP, `ERANGE` if the MTU is too large for XDP in the driver, `EINVAL` before Linux 5.9.
    pub(super) fn attach(&self, interface: u32, slot: AttachMode) -> io::Result<Attachment> {
        let flags = match slot {
            AttachMode::Native => XDP_FLAGS_DRV_MODE,
            AttachMode::Generic => XDP_FLAGS_SKB_MODE,
        };
        Attachment::new(&self.program, interface, AttachPoint::Xdp(flags))
    }
}
