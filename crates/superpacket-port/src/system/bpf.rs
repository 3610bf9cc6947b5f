//! The parts of `bpf(2)` that ports need: maps, programs, and their attachment to an interface.
//!
//! The programs have only a few instructions and no object file, so no loader library (aya, libbpf)
//! is needed.

#![expect(unsafe_code, reason = "bpf(2)")]

pub(crate) mod code;

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::option::Plain;

// Commands and types of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;

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

/// The kind of a [`Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapKind {
    /// A hash table whose elements are allocated when they are added.
    Hash,
    /// A map from receive queues to AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
    Sockets,
}

/// A map of the kernel from `K` to `V`, which programs and processes share.
#[derive(Debug)]
pub(crate) struct Map<K, V> {
    map: OwnedFd,
    types: PhantomData<fn(K) -> V>,
}

/// A map from receive queues to AF_XDP sockets. Values are descriptors.
pub(crate) type SocketMap = Map<u32, RawFd>;

impl<K: Plain, V: Plain> Map<K, V> {
    /// Creates a map for `entries` elements (`BPF_MAP_CREATE`).
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`.
    pub(crate) fn new(kind: MapKind, entries: u32, name: Name) -> io::Result<Self> {
        let (map_type, map_flags) = match kind {
            MapKind::Hash => (BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC),
            MapKind::Sockets => (BPF_MAP_TYPE_XSKMAP, 0),
        };
        let mut create = MapCreate {
            map_type,
            key_size: size_of::<K>() as u32,
            value_size: size_of::<V>() as u32,
            max_entries: entries,
            map_flags,
            map_name: name,
            ..MapCreate::default()
        };
        // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
        let map = unsafe { descriptor(BPF_MAP_CREATE, &mut create) }?;
        Ok(Map { map, types: PhantomData })
    }

    /// Sets the value of a key (`BPF_MAP_UPDATE_ELEM`).
    ///
    /// # Errors
    /// The system call's error: `E2BIG` if the map is full.
    pub(crate) fn set(&self, key: K, value: V) -> io::Result<()> {
        let mut update = MapElement {
            map: self.number() as u32,
            padding: 0,
            key: (&raw const key).expose_provenance() as u64,
            value: (&raw const value).expose_provenance() as u64,
            flags: 0,
        };
        // SAFETY: the addresses are those of a key and of a value of the sizes that `new` created
        // the map with. Both live until the call returns, and the command only reads them.
        unsafe { call(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
    }

    /// Removes a key and its value (`BPF_MAP_DELETE_ELEM`).
    ///
    /// # Errors
    /// The system call's error: `ENOENT` if the map does not have the key.
    pub(crate) fn remove(&self, key: K) -> io::Result<()> {
        let mut element = MapElement {
            map: self.number() as u32,
            padding: 0,
            key: (&raw const key).expose_provenance() as u64,
            value: 0,
            flags: 0,
        };
        // SAFETY: the address is that of a key of the size that `new` created the map with. It
        // lives until the call returns, and the command only reads it.
        unsafe { call(BPF_MAP_DELETE_ELEM, &mut element) }.map(drop)
    }

    /// Returns the map's descriptor, by which a program's instructions refer to it.
    pub(crate) fn number(&self) -> RawFd {
        self.map.as_raw_fd()
    }
}

/// A type of atomic numbers that the kernel's programs and this process access at the same time.
///
/// # Safety
/// The type consists of atomic integers only, without padding.
pub(crate) unsafe trait SharedWithPrograms {}

/// An array that is shared with the kernel's programs, and mapped into this process. All values
/// are 0 at first.
#[derive(Debug)]
pub(crate) struct MappedArray<T> {
    map: OwnedFd,
    start: NonNull<T>,
    entries: u32,
    bytes: usize,
}

// SAFETY: the memory consists of atomic numbers, which any thread may access.
unsafe impl<T: SharedWithPrograms> Send for MappedArray<T> {}
// SAFETY: as above.
unsafe impl<T: SharedWithPrograms> Sync for MappedArray<T> {}

impl<T: SharedWithPrograms> MappedArray<T> {
    /// Creates an array of `entries` elements, and maps it (`BPF_F_MMAPABLE`, Linux 5.5).
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_BPF`, `ENOMEM`.
    pub(crate) fn new(entries: u32, name: Name) -> io::Result<Self> {
        // The kernel rounds the size of an element up to a multiple of 8.
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 4096) };
        let mut create = MapCreate {
            map_type: BPF_MAP_TYPE_ARRAY,
            key_size: size_of::<u32>() as u32,
            value_size: size_of::<T>() as u32,
            max_entries: entries,
            map_flags: BPF_F_MMAPABLE,
            map_name: name,
            ..MapCreate::default()
        };
        // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
        let map = unsafe { descriptor(BPF_MAP_CREATE, &mut create) }?;
        let bytes = entries as usize * size_of::<T>();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &map,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(MappedArray { map, start, entries, bytes })
    }

    /// Returns an element; `None` if the index is out of range.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: the mapping has this many elements, whose bytes are atomic numbers. It is aligned
        // to a page, and lives as long as `self`.
        (index < self.entries).then(|| unsafe { self.start.add(index as usize).as_ref() })
    }

    /// Returns the map's descriptor, by which a program's instructions refer to it.
    pub(crate) fn number(&self) -> RawFd {
        self.map.as_raw_fd()
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made for this array alone, and no reference outlives it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The kind of a program, which decides how it may be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    /// Runs before the network stack, or in the driver (`BPF_PROG_TYPE_XDP`).
    Xdp,
    /// Runs at a traffic control hook (`BPF_PROG_TYPE_SCHED_CLS`).
    TrafficControl,
    /// Decides which packets a socket receives (`BPF_PROG_TYPE_SOCKET_FILTER`).
    SocketFilter,
}

/// A program to be loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) kind: ProgramKind,
    pub(crate) instructions: &'a [Instruction],
    pub(crate) license: &'a CStr,
    /// Load flags (`BPF_F_XDP_...`).
    pub(crate) flags: u32,
    pub(crate) name: Name,
    /// Index of the only interface that the program may run on; 0 for any.
    pub(crate) interface: u32,
}

/// The kernel's refusal of a program.
#[derive(Debug)]
pub(crate) struct LoadError {
    pub(crate) error: io::Error,
    /// The verifier's messages; empty if it gave none.
    pub(crate) log: String,
}

impl From<LoadError> for io::Error {
    fn from(refusal: LoadError) -> Self {
        match refusal.log.is_empty() {
            true => refusal.error,
            false => io::Error::new(
                refusal.error.kind(),
                format!("{}: the verifier says: {}", refusal.error, refusal.log),
            ),
        }
    }
}

/// Size of the buffer for the verifier's messages, in bytes.
const LOG_SIZE: usize = 64 << 10;

impl Program<'_> {
    /// Loads the program (`BPF_PROG_LOAD`).
    ///
    /// # Errors
    /// The system call's error and the verifier's messages: `EPERM` without `CAP_BPF` and
    /// `CAP_NET_ADMIN`.
    pub(crate) fn load(&self) -> Result<OwnedFd, LoadError> {
        let mut log = Vec::new();
        loop {
            match self.load_with(&mut log) {
                Ok(program) => return Ok(program),
                // Without permission, the verifier gives no messages.
                Err(error) if log.is_empty() && error.raw_os_error() != Some(libc::EPERM) => {
                    log = vec![0u8; LOG_SIZE]
                }
                Err(error) => {
                    let words = log.split(|&byte| byte == 0).next().unwrap_or_default();
                    let log = String::from_utf8_lossy(words).trim().to_owned();
                    return Err(LoadError { error, log });
                }
            }
        }
    }

    /// Loads the program. The verifier writes its messages to `log`, terminated by a zero byte.
    /// With an empty log it writes none.
    fn load_with(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        let (program_type, expected_attach_type) = match self.kind {
            ProgramKind::Xdp => (BPF_PROG_TYPE_XDP, BPF_XDP),
            ProgramKind::TrafficControl => (BPF_PROG_TYPE_SCHED_CLS, 0),
            ProgramKind::SocketFilter => (BPF_PROG_TYPE_SOCKET_FILTER, 0),
        };
        let mut load = ProgramLoad {
            program_type,
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
            expected_attach_type,
            ..ProgramLoad::default()
        };
        // SAFETY: the addresses are those of the instructions and of a string that ends with zero,
        // which are only read, and of the log, which is writable or absent. Each length is that of
        // its slice, and all are borrowed until the call returns. The command yields a descriptor.
        unsafe { descriptor(BPF_PROG_LOAD, &mut load) }
    }
}

/// The place at which a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachPoint {
    /// XDP, with these flags (`XDP_FLAGS_...`).
    Xdp(u32),
    /// Traffic control of received packets, before all programs of other kinds (TCX, Linux 6.6).
    TcxIngress,
}

/// A program attached to an interface, which is detached when this is dropped, or when the process
/// ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    link: OwnedFd,
}

impl Attachment {
    /// Attaches a program to the interface with index `interface` (`BPF_LINK_CREATE`).
    ///
    /// # Errors
    /// The system call's error: `EINVAL` if the kernel does not know the place.
    pub(crate) fn new(program: impl AsFd, interface: u32, at: AttachPoint) -> io::Result<Self> {
        let program = program.as_fd().as_raw_fd() as u32;
        let (attach_type, flags) = match at {
            AttachPoint::Xdp(flags) => (BPF_XDP, flags),
            AttachPoint::TcxIngress => (BPF_TCX_INGRESS, 0),
        };
        let mut create = LinkCreate { program, target: interface, attach_type, flags };
        // SAFETY: the command reads the attributes, which hold no address, and yields a descriptor.
        Ok(Attachment { link: unsafe { descriptor(BPF_LINK_CREATE, &mut create) }? })
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Closing the descriptor is not sufficient, since a child process may hold a copy for a
        // moment, between `fork` and `exec`.
        let mut detach = LinkDetach { link: self.link.as_raw_fd() as u32 };
        // SAFETY: the command reads the attributes, which hold no address.
        let _ = unsafe { call(BPF_LINK_DETACH, &mut detach) };
    }
}

/// Returns how many programs are attached to an interface's TCX ingress (`BPF_PROG_QUERY`).
///
/// # Errors
/// The system call's error: `EINVAL` before Linux 6.6.
pub(crate) fn tcx_programs(interface: u32) -> io::Result<u32> {
    let mut query =
        ProgramQuery { target: interface, attach_type: BPF_TCX_INGRESS, ..ProgramQuery::default() };
    // SAFETY: without a list of programs to fill, the command reads the attributes and writes only
    // the number of programs to them.
    unsafe { call(BPF_PROG_QUERY, &mut query) }?;
    Ok(query.count)
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
struct MapElement {
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

#[repr(C)]
#[derive(Default)]
struct ProgramQuery {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_attach_flags: u64,
    links: u64,
    link_attach_flags: u64,
    revision: u64,
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
            (size_of::<MapCreate>(), size_of::<MapElement>(), size_of::<LinkCreate>()),
            (44, 32, 16)
        );
        assert_eq!(std::mem::offset_of!(ProgramLoad, name), 48);
        assert_eq!(size_of::<ProgramLoad>(), 72);
    }
}
