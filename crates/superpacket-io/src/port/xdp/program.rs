//! The program that hands an interface's frames to AF_XDP sockets, and its attachment.
//!
//! It is attached by a link (`BPF_LINK_CREATE`, Linux 5.9): the kernel takes it off when the link's
//! descriptor is closed, also when the process is killed.

#![expect(unsafe_code, reason = "bpf(2)")]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::instructions::program;

// Commands, kinds and flags of `linux/bpf.h` and `linux/if_link.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Bytes for what the verifier says of a program that it refuses.
const LOG: usize = 64 << 10;

/// The name of map and program, as `bpftool` shows it.
const NAME: [u8; 16] = *b"superpacket\0\0\0\0\0";

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
    map: OwnedFd,
    program: OwnedFd,
}

/// A program attached to an interface, until this is dropped.
#[derive(Debug)]
pub(super) struct Attachment {
    descriptor: OwnedFd,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing the descriptor would do, but for a copy that a child process may hold for a
        // moment, between `fork` and `exec`.
        let mut detach = LinkDetach { link: self.descriptor.as_raw_fd() as u32 };
        // SAFETY: the command reads the attributes, which hold no address.
        let _ = unsafe { call(BPF_LINK_DETACH, &mut detach) };
    }
}

impl Redirect {
    /// Makes a map for queues up to `queues - 1` (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF`.
    pub(super) fn map(queues: u32) -> io::Result<OwnedFd> {
        let mut create = MapCreate {
            map_type: BPF_MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            map_name: NAME,
            ..MapCreate::default()
        };
        // SAFETY: the command reads the attributes, which hold no address.
        unsafe { descriptor(BPF_MAP_CREATE, &mut create) }
    }

    /// Loads the program that redirects to the sockets of `map` (`BPF_PROG_LOAD`); `fragments`: it
    /// takes frames of several buffers too; `hash`: it puts the device's hash before them.
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` for a
    /// driver without metadata or a kernel before Linux 6.3 that is to hash; else with the
    /// verifier's words.
    pub(super) fn load(map: OwnedFd, fragments: bool, hash: Option<&Hash>) -> Result<Self, Refused> {
        let program = program(map.as_raw_fd(), hash.map(|hash| hash.function));
        // Functions of the kernel are for programs under the GPL, be it among others.
        let license = if hash.is_some() { c"Dual MIT/GPL" } else { c"MIT" };
        let bound = if hash.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
        let mut log = Vec::new();
        loop {
            let mut load = ProgramLoad {
                program_type: BPF_PROG_TYPE_XDP,
                instruction_count: program.len() as u32,
                instructions: program.as_ptr().addr() as u64,
                license: license.as_ptr().addr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: log.len() as u32,
                log_buffer: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
                flags: bound | if fragments { BPF_F_XDP_HAS_FRAGS } else { 0 },
                name: NAME,
                interface: hash.map_or(0, |hash| hash.interface),
                expected_attach_type: BPF_XDP,
                ..ProgramLoad::default()
            };
            // SAFETY: the addresses are of the instructions, as many as said, of a string that ends
            // with zero, and of a buffer as long as said or none, all of which live until the call
            // returns.
            match unsafe { descriptor(BPF_PROG_LOAD, &mut load) } {
                Ok(program) => return Ok(Redirect { map, program }),
                // Whoever lacks a permission learns nothing from the verifier.
                Err(error) if log.is_empty() && error.raw_os_error() != Some(libc::EPERM) => log = vec![0u8; LOG],
                Err(error) => {
                    let words = log.split(|&byte| byte == 0).next().unwrap_or_default();
                    return Err(Refused { error, log: String::from_utf8_lossy(words).trim().to_owned() });
                }
            }
        }
    }

    /// Redirects the frames of `queue` to a socket (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// What the system refused.
    pub(super) fn set(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        let value = socket.as_fd().as_raw_fd();
        let mut update = MapUpdate {
            map: self.map.as_raw_fd() as u32,
            padding: 0,
            key: std::ptr::from_ref(&queue).addr() as u64,
            value: std::ptr::from_ref(&value).addr() as u64,
            flags: 0,
        };
        // SAFETY: the addresses are of a key and a value of 4 bytes each, the sizes that the map
        // was made with, which live until the call returns.
        unsafe { call(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
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
        let mut create = LinkCreate { program: self.program.as_raw_fd() as u32, target: interface, attach_type: BPF_XDP, flags };
        // SAFETY: the command reads the attributes, which hold no address.
        Ok(Attachment { descriptor: unsafe { descriptor(BPF_LINK_CREATE, &mut create) }? })
    }
}

// Parts of `union bpf_attr`, as far as they are used: the kernel takes what is missing at the end
// as zeros.

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct LinkDetach {
    link: u32,
}

/// `bpf(2)`.
///
/// # Safety
/// `attributes` must be those of `command`, and addresses in them those of what the command reads
/// and writes.
unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes as many bytes of the attributes as they have; the rest is
    // up to the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A command that yields a descriptor, which is closed on `exec`.
///
/// # Safety
/// As [`call`], and the command must yield a descriptor.
unsafe fn descriptor<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: up to the caller.
    let descriptor = unsafe { call(command, attributes) }?;
    let descriptor = libc::c_int::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just opened it, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_layout() {
        assert_eq!((size_of::<MapCreate>(), size_of::<MapUpdate>(), size_of::<LinkCreate>()), (44, 32, 16));
        assert_eq!(std::mem::offset_of!(ProgramLoad, name), 48);
        assert_eq!(size_of::<ProgramLoad>(), 72);
    }
}
