//! `bpf(2)`, as far as AF_XDP ports need it: a map of sockets, a program, and its attachment to an
//! interface.
//!
//! By hand: the program is a handful of instructions and needs no file, which a loader's library
//! (aya, libbpf) is for.

#![expect(unsafe_code, reason = "bpf(2)")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

// Commands and kinds of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;

/// The name of a map or a program, as `bpftool` shows it: ASCII, and a zero at the end.
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
        // Two fields of four bits each, in the order of the machine.
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
    /// Makes a map for queues up to `queues - 1` (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF`.
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

    /// Gives `queue` a socket (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn set(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        let value: RawFd = socket.as_fd().as_raw_fd();
        let mut update = MapUpdate {
            map: self.0.as_raw_fd() as u32,
            padding: 0,
            key: (&raw const queue).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: 0,
        };
        // SAFETY: the addresses are of a `u32` and of a descriptor, the sizes that `new` made the
        // map with, both of which live until the call returns; the command only reads them.
        unsafe { call(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
    }

    /// Its descriptor, by which a program's instructions name it.
    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An XDP program that is to be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XdpProgram<'a> {
    pub(crate) instructions: &'a [Instruction],
    pub(crate) license: &'a CStr,
    /// `BPF_F_XDP_...`.
    pub(crate) flags: u32,
    pub(crate) name: Name,
    /// The number of the only interface that it is for; 0: it is for any.
    pub(crate) interface: u32,
}

impl XdpProgram<'_> {
    /// Loads it (`BPF_PROG_LOAD`). The verifier's words go to `log`, with a zero at their end; an
    /// empty one asks for none.
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`; `ENOSPC` if the log
    /// is too short; else what the verifier has against it.
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
        // SAFETY: the addresses are of the instructions, as many as said, and of a string that ends
        // with zero, both of which are only read, and of a buffer that is ours to write, as long as
        // said, or none; all are borrowed until the call returns. It yields a descriptor.
        unsafe { descriptor(BPF_PROG_LOAD, &mut load) }
    }
}

/// Attaches an XDP program to the interface number `interface` (`BPF_LINK_CREATE`), until the link
/// that it returns is closed, by all who hold it, or [detached](detach); `flags` are those of
/// `XDP_FLAGS_...`.
///
/// # Errors
/// What the system refused.
pub(crate) fn attach(program: impl AsFd, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_fd().as_raw_fd() as u32;
    let mut create = LinkCreate { program, target: interface, attach_type: BPF_XDP, flags };
    // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
    unsafe { descriptor(BPF_LINK_CREATE, &mut create) }
}

/// Takes the program of a link off (`BPF_LINK_DETACH`), whoever else holds the link.
///
/// # Errors
/// What the system refused.
pub(crate) fn detach(link: impl AsFd) -> io::Result<()> {
    let mut detach = LinkDetach { link: link.as_fd().as_raw_fd() as u32 };
    // SAFETY: the command reads the attributes, which hold no address.
    unsafe { call(BPF_LINK_DETACH, &mut detach) }.map(drop)
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
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A command that yields a descriptor, which is closed on `exec`.
///
/// # Safety
/// As for [`call`], and the command must yield a descriptor.
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
        assert_eq!(
            (size_of::<MapCreate>(), size_of::<MapUpdate>(), size_of::<LinkCreate>()),
            (44, 32, 16)
        );
        assert_eq!(std::mem::offset_of!(ProgramLoad, name), 48);
        assert_eq!(size_of::<ProgramLoad>(), 72);
    }
}
