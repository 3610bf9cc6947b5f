//! The parts of `bpf(2)` that AF_XDP ports need: a map of sockets, an XDP program, and its
//! attachment to an interface.
//!
//! The program has only a few instructions and no object file, so no loader library (aya, libbpf)
//! is needed.

#![expect(unsafe_code, reason = "bpf(2)")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

// Commands and types of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;

/// The name of a map or a program, as `bpftool` shows it: ASCII, terminated by a zero byte.
pub(crate) type Name = [u8; 16];

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

impl Instruction {
    pub(crate) const fn new(
        code: u8,
        destination: u8,
        source: u8,
        offset: i16,
        immediate: i32,
    ) -> Self {
        // Two fields of four bits each, ordered by the machine's endianness.
        let registers = if cfg!(target_endian = "little") {
            destination | source << 4
        } else {
            destination << 4 | source
        };
        Instruction { code, registers, offset, immediate }
    }
}

/// A map from queues to AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
#[derive(Debug)]
pub(crate) struct SocketMap(OwnedFd);

impl SocketMap {
    /// Creates a map for the queues 0 to `queues - 1` (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`.
    pub(crate) fn new(queues: u32, name: Name) -> io::Result<Self> {
        let mut create = MapCreate {
            map_type: BPF_MAP_TYPE_XSKMAP,
            key_size: size_of::<u32>() as u32,
            value_size: size_of::<RawFd>() as u32,
            max_entries: queues,
            map_name: name,
            ..MapCreate::default()
        };
        // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
        Ok(SocketMap(unsafe { descriptor(BPF_MAP_CREATE, &mut create) }?))
    }

    /// Sets the socket of a queue (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn set(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        let value: RawFd = socket.as_fd().as_raw_fd();
        let mut update = MapUpdate {
            map: self.0.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: 0,
        };
        // SAFETY: the addresses are those of a `u32` and of a descriptor, which have the sizes that
        // `new` created the map with. Both live until the call returns, and the command only reads
        // them.
        unsafe { call(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
    }

    /// Returns the map's descriptor, by which a program's instructions refer to it.
    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An XDP program to be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XdpProgram<'a> {
    pub(crate) instructions: &'a [Instruction],
    pub(crate) license: &'a CStr,
    /// Load flags (`BPF_F_XDP_...`).
    pub(crate) flags: u32,
    pub(crate) name: Name,
    /// Index of the only interface that the program may run on; 0 for any.
    pub(crate) interface: u32,
}

impl XdpProgram<'_> {
    /// Loads the program (`BPF_PROG_LOAD`). The verifier writes its messages to `log`, terminated
    /// by a zero byte. With an empty log it writes none.
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `ENOSPC` if the log
    /// is too short, or the verifier's refusal.
    pub(crate) fn load(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut load = ProgramLoad {
            program_type: BPF_PROG_TYPE_XDP,
            instruction_count: self.instructions.len() as u32,
            instructions: self.instructions.as_ptr().expose_provenance() as u64,
            license: self.license.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buffer: if log.is_empty() {
                0
            } else {
                log.as_mut_ptr().expose_provenance() as u64
            },
            flags: self.flags,
            name: self.name,
            interface: self.interface,
            expected_attach_type: BPF_XDP,
            ..ProgramLoad::default()
        };
        // SAFETY: the addresses are those of the instructions and of a string that ends with zero,
        // which are only read, and of the log, which is writable or absent. Each length is that of
        // its slice, and all are borrowed until the call returns. The command yields a descriptor.
        unsafe { descriptor(BPF_PROG_LOAD, &mut load) }
    }
}

/// Attaches an XDP program to the interface with index `interface` (`BPF_LINK_CREATE`). `flags` are
/// `XDP_FLAGS_...`.
///
/// The program stays attached until every holder of the returned link has closed it, or until the
/// link is [detached](detach).
///
/// # Errors
/// The system call's error.
pub(crate) fn attach(program: impl AsFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_fd().as_raw_fd() as u32;
    let mut create = LinkCreate { program, target: interface, attach_type: BPF_XDP, flags };
    // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
    unsafe { descriptor(BPF_LINK_CREATE, &mut create) }
}

/// Detaches the program of a link (`BPF_LINK_DETACH`), even if other processes hold the link.
///
/// # Errors
/// The system call's error.
pub(crate) fn detach(link: impl AsFd) -> io::Result<()> {
    let mut detach = LinkDetach { link: link.as_fd().as_raw_fd() as u32 };
    // SAFETY: the command reads the attributes, which hold no address.
    unsafe { call(BPF_LINK_DETACH, &mut detach) }.map(drop)
}

// The used fields of `union bpf_attr`: the kernel treats missing fields at the end as zeros.

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

/// Calls `bpf(2)`.
///
/// # Safety
/// `attributes` must be those of `command`, and every address in them must be valid for the reads
/// and writes of the command.
unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads and writes at most the given size of the attributes. The caller
    // vouches for the addresses in them.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs a command that returns a descriptor, which is closed on `exec`.
///
/// # Safety
/// As for [`call`], and the command must return a new descriptor.
unsafe fn descriptor<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for it.
    let descriptor = unsafe { call(command, attributes) }?;
    let descriptor = libc::c_int::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just opened this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_layout() {
        assert_eq!(
            (size_of::<MapCreate>(), size_of::<MapUpdate>(), size_of::<LinkCreate>()),
            (44, 32, 16)
        );
        assert_eq!(std::mem::offset_of!(ProgramLoad, name), 48);
        assert_eq!(size_of::<ProgramLoad>(), 72);
    }
}
