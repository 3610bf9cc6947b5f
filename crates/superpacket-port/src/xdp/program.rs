//! The program that hands an interface's frames to AF_XDP sockets, and its attachment.
//!
//! It is attached by a link (`BPF_LINK_CREATE`, Linux 5.9): the kernel takes it off when the link's
//! descriptor is closed, also when the process is killed.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::instructions::program;
use crate::system::bpf::{self, Name, SocketMap, XdpProgram};

// Flags of `linux/bpf.h` and `linux/if_link.h`.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Bytes for what the verifier says of a program that it refuses.
const LOG: usize = 64 << 10;

/// The name of map and program, as `bpftool` shows it.
const NAME: Name = *b"superpacket\0\0\0\0\0";

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// In the driver.
    Native,
    /// Behind it.
    Generic,
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Slot::Native => "native",
            Slot::Generic => "generic",
        })
    }
}

/// A program was refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: io::Error,
    /// The verifier's words; empty if it was not asked.
    pub(super) log: String,
}

/// What a program needs to ask the driver for the flow hash: it is for one interface then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash {
    /// The number of `bpf_xdp_metadata_rx_hash` in this kernel.
    pub(super) function: i32,
    /// The interface's number.
    pub(super) interface: u32,
}

/// The program, loaded, and the map that it reads: a socket for each queue.
#[derive(Debug)]
pub(super) struct Redirect {
    map: SocketMap,
    program: OwnedFd,
}

/// A program attached to an interface, until this is dropped.
#[derive(Debug)]
pub(super) struct Attachment {
    link: OwnedFd,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing the descriptor would do, but for a copy that a child process may hold for a
        // moment, between `fork` and `exec`.
        let _ = bpf::detach(&self.link);
    }
}

impl Redirect {
    /// Makes a map for queues up to `queues - 1` (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF`.
    pub(super) fn map(queues: u32) -> io::Result<SocketMap> {
        SocketMap::new(queues, NAME)
    }

    /// Loads the program that redirects to the sockets of `map` (`BPF_PROG_LOAD`); `fragments`: it
    /// takes frames of several buffers too; `hash`: it puts the device's hash before them.
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` for a
    /// driver without metadata or a kernel before Linux 6.3 that is to hash; else with the
    /// verifier's words.
    pub(super) fn load(
        map: SocketMap,
        fragments: bool,
        hash: Option<&Hash>,
    ) -> Result<Self, Refused> {
        let bound = if hash.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
        let several = if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 };
        let program = XdpProgram {
            instructions: &program(map.number(), hash.map(|hash| hash.function)),
            // Functions of the kernel are for programs under the GPL, be it among others.
            license: if hash.is_some() { c"Dual MIT/GPL" } else { c"MIT" },
            flags: bound | several,
            name: NAME,
            interface: hash.map_or(0, |hash| hash.interface),
        };
        let mut log = Vec::new();
        loop {
            match program.load(&mut log) {
                Ok(program) => return Ok(Redirect { map, program }),
                // Whoever lacks a permission learns nothing from the verifier.
                Err(error) if log.is_empty() && error.raw_os_error() != Some(libc::EPERM) => {
                    log = vec![0u8; LOG]
                }
                Err(error) => {
                    let words = log.split(|&byte| byte == 0).next().unwrap_or_default();
                    return Err(Refused {
                        error,
                        log: String::from_utf8_lossy(words).trim().to_owned(),
                    });
                }
            }
        }
    }

    /// Redirects the frames of `queue` to a socket (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// What the system refused.
    pub(super) fn set(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        self.map.set(queue, socket)
    }

    /// Attaches the program to the interface number `interface` (`BPF_LINK_CREATE`).
    ///
    /// # Errors
    /// `EBUSY` and `EEXIST` if it has a program, `EOPNOTSUPP` from drivers without XDP, `ERANGE`
    /// for an MTU that the driver cannot have with it, `EINVAL` from kernels before Linux 5.9.
    pub(super) fn attach(&self, interface: u32, slot: Slot) -> io::Result<Attachment> {
        let flags = match slot {
            Slot::Native => XDP_FLAGS_DRV_MODE,
            Slot::Generic => XDP_FLAGS_SKB_MODE,
        };
        Ok(Attachment { link: bpf::attach(&self.program, interface, flags)? })
    }
}
