//! The memory of a guest: files that its front end passes, mapped into this process.
//!
//! The guest writes to this memory at any time. It is therefore never borrowed as a slice: bytes
//! are copied out or in through pointers ([`copy`]), and only the copy is interpreted.

#![expect(unsafe_code, reason = "memory that a guest changes at the same time")]

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FileType, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The kinds of memory that a front end may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryTrust {
    /// Only memory that cannot be taken away again: a `memfd` of normal pages with `F_SEAL_SHRINK`.
    Sealed,
    /// Any file that is long enough. A front end can then end this process by `SIGBUS`, if it
    /// shortens the file later or shares more huge pages than exist. A front end that serves the
    /// file itself (FUSE) can delay this process.
    Any,
}

/// The location of a region of guest memory. Addresses and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPlace {
    /// Address of the region in the guest (guest-physical).
    pub guest_address: u64,
    /// Address of the region in the front end's process. The front end gives the rings' locations
    /// as such addresses.
    pub user_address: u64,
    /// Length of the region.
    pub length: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

/// A contiguous part of guest memory that is mapped here.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestBytes {
    pub(super) start: NonNull<u8>,
    pub(super) length: usize,
}

/// A region of guest memory, mapped until it is dropped.
#[derive(Debug)]
struct MappedRegion {
    place: RegionPlace,
    /// Start of the mapping, which corresponds to the start of the file.
    map: NonNull<u8>,
    map_length: usize,
    /// First byte of the region.
    start: NonNull<u8>,
}

// SAFETY: the region owns its mapping. Its bytes are only reached through raw pointers, by
// functions that say what they do about other writers.
unsafe impl Send for MappedRegion {}
// SAFETY: as above; the fields are not changed after the region is made.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    fn map(place: RegionPlace, file: impl AsFd, trust: MemoryTrust) -> io::Result<Self> {
        let invalid = |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, problem);
        let ends = [place.guest_address, place.user_address, place.offset]
            .map(|from| from.checked_add(place.length));
        let [Some(_), Some(_), Some(end)] = ends else {
            return Err(invalid("a memory region exceeds its address space"));
        };
        let file = file.as_fd();
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("a memory region's descriptor is not a file"));
        }
        if place.length == 0 || end > stat.st_size as u64 {
            return Err(invalid("a memory region is longer than its file"));
        }
        if trust == MemoryTrust::Sealed && !is_sealed(file) {
            return Err(invalid(
                "the guest's memory can be taken away (no memfd with F_SEAL_SHRINK): \
                 memory=any accepts it",
            ));
        }
        // Mapped from the file's beginning, because huge pages allow few offsets. Files of huge
        // pages are mapped and unmapped in whole ones.
        let block = (stat.st_blksize as u64).max(1);
        let map_length = end
            .checked_next_multiple_of(block)
            .and_then(|length| usize::try_from(length).ok())
            .ok_or_else(|| invalid("a memory region is too long"))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the system chooses an address where nothing is mapped.
        let map = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), map_length, protection, flags, file, 0)
        }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the offset is below `end`, which is at most the length of the mapping.
        let start = unsafe { map.add(place.offset as usize) };
        Ok(MappedRegion { place, map, map_length, start })
    }

    /// Returns the bytes from `address` on, where `base` is the address of the region.
    fn from(&self, base: u64, address: u64) -> Option<GuestBytes> {
        let offset = address.checked_sub(base).filter(|offset| *offset < self.place.length)?;
        Some(GuestBytes {
            // SAFETY: the offset lies within the region, which lies within the mapping.
            start: unsafe { self.start.add(offset as usize) },
            length: (self.place.length - offset) as usize,
        })
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own. Who uses its bytes holds the memory that the
        // region belongs to.
        if let Err(error) = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_length) }
        {
            tracing::error!(%error, "a guest's memory cannot be unmapped");
        }
    }
}

/// Returns whether a file keeps its length and its pages: shared memory of normal pages that is
/// sealed against shrinking.
fn is_sealed(file: std::os::fd::BorrowedFd<'_>) -> bool {
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
    // Huge pages may run out when they are first touched, whatever the seals.
    let is_shmem = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC);
    is_shmem
        && rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// The regions of a guest's memory. Clones share the mappings, which stay until the last is
/// dropped.
#[derive(Clone, Default)]
pub struct GuestMemory {
    regions: Vec<Arc<MappedRegion>>,
}

impl GuestMemory {
    /// Maximum number of regions, as in the messages of vhost-user front ends.
    pub const MAX_REGIONS: usize = 32;

    /// Returns this memory with another region, which is mapped from `file`.
    ///
    /// # Errors
    /// The file cannot be mapped, is too short or not trusted, or there are too many regions.
    pub fn with_region(
        &self,
        place: RegionPlace,
        file: impl AsFd,
        trust: MemoryTrust,
    ) -> io::Result<Self> {
        if self.regions.len() == Self::MAX_REGIONS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many memory regions"));
        }
        let mut memory = self.clone();
        memory.regions.push(Arc::new(MappedRegion::map(place, file, trust)?));
        Ok(memory)
    }

    /// Returns this memory without the region at these addresses; `None` if there is none.
    pub fn without_region(&self, place: &RegionPlace) -> Option<Self> {
        let same = |region: &Arc<MappedRegion>| {
            let known = &region.place;
            (known.guest_address, known.user_address, known.length)
                == (place.guest_address, place.user_address, place.length)
        };
        let index = self.regions.iter().position(same)?;
        let mut memory = self.clone();
        memory.regions.remove(index);
        Some(memory)
    }

    /// Returns the bytes from a guest-physical address to the end of its region.
    pub(super) fn at_guest_address(&self, address: u64) -> Option<GuestBytes> {
        self.regions.iter().find_map(|region| region.from(region.place.guest_address, address))
    }

    /// Returns the guest-physical address, the length and the first byte of the region that
    /// contains this guest-physical address.
    pub(super) fn region_at(&self, address: u64) -> Option<(u64, GuestBytes)> {
        self.regions.iter().find_map(|region| {
            let base = region.place.guest_address;
            region.from(base, address)?;
            Some((base, region.from(base, base)?))
        })
    }

    /// Returns `length` bytes at an address of the front end's process, aligned to `align`. They
    /// lie in one region.
    pub(super) fn at_user_address(
        &self,
        address: u64,
        length: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let bytes = self
            .regions
            .iter()
            .find_map(|region| region.from(region.place.user_address, address))?;
        (length <= bytes.length && bytes.start.addr().get().is_multiple_of(align))
            .then_some(bytes.start)
    }
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.regions.iter().map(|region| region.place)).finish()
    }
}

/// Copies bytes between guest memory and memory of this process.
///
/// Never inlined: the compiler must not know that the two places were equal, or it could read the
/// guest's bytes again instead of the copy.
///
/// # Safety
/// Both places must be valid for `length` bytes and must not overlap. One is guest memory, the
/// other belongs to the caller. Others may write the guest's bytes meanwhile, since the copy is
/// then made of old and new bytes, and any byte is valid.
#[inline(never)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise. Other writers are outside this process, so that they are to
    // this program what a device is.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use std::os::fd::OwnedFd;

    use super::*;

    fn memfd(length: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        rustix::fs::ftruncate(&file, length).expect("memory");
        rustix::fs::fcntl_add_seals(&file, seals).expect("it may be sealed");
        file
    }

    fn place(guest_address: u64, length: u64, offset: u64) -> RegionPlace {
        RegionPlace { guest_address, user_address: guest_address + (1 << 40), length, offset }
    }

    #[test]
    fn addresses_are_found_in_their_region() {
        let file = memfd(0x4000, SealFlags::SHRINK);
        let memory = GuestMemory::default();
        let memory =
            memory.with_region(place(0x1000, 0x1000, 0), &file, MemoryTrust::Sealed).expect("maps");
        let memory = memory
            .with_region(place(0x2000, 0x1000, 0x3000), &file, MemoryTrust::Sealed)
            .expect("maps");
        assert!(memory.at_guest_address(0xfff).is_none());
        assert!(memory.at_guest_address(0x3000).is_none());
        assert!(memory.at_guest_address(u64::MAX).is_none());
        assert_eq!(memory.at_guest_address(0x1fff).map(|bytes| bytes.length), Some(1));
        assert_eq!(memory.at_guest_address(0x2000).map(|bytes| bytes.length), Some(0x1000));
        let user = |address: u64, length, align| {
            memory.at_user_address((1 << 40) + address, length, align).is_some()
        };
        assert!(user(0x1000, 0x1000, 16) && !user(0x1000, 0x1001, 16));
        assert!(!user(0x1002, 4, 4) && user(0x1002, 4, 2) && !user(0x3000, 1, 1));
        let less = memory.without_region(&place(0x1000, 0x1000, 0)).expect("it is there");
        assert!(less.at_guest_address(0x1000).is_none());
        assert!(memory.at_guest_address(0x1000).is_some(), "others keep it");
        assert!(less.without_region(&place(0x1000, 0x1000, 0)).is_none());
    }

    #[test]
    fn memory_that_can_be_taken_away_is_refused() {
        let whole = place(0, 0x1000, 0);
        let memory = GuestMemory::default();
        let map = |file: &OwnedFd, place, trust| memory.with_region(place, file, trust).is_ok();
        let sealed = memfd(0x1000, SealFlags::SHRINK);
        let open = memfd(0x1000, SealFlags::GROW);
        assert!(map(&sealed, whole, MemoryTrust::Sealed));
        assert!(!map(&open, whole, MemoryTrust::Sealed));
        assert!(map(&open, whole, MemoryTrust::Any));
        for beyond in [place(0, 0x1001, 0), place(0, 0x1000, 1), place(0, 0, 0)] {
            assert!(!map(&sealed, beyond, MemoryTrust::Any), "{beyond:?}");
        }
        for endless in [
            place(0, u64::MAX, 1),
            RegionPlace { guest_address: u64::MAX, ..whole },
            RegionPlace { user_address: u64::MAX, ..whole },
        ] {
            assert!(!map(&sealed, endless, MemoryTrust::Any), "{endless:?}");
        }
        let pipe = rustix::pipe::pipe().expect("a pipe").0;
        assert!(!map(&pipe, whole, MemoryTrust::Any));
    }

    #[test]
    fn there_are_at_most_32_regions() {
        let file = memfd(0x1000, SealFlags::SHRINK);
        let mut memory = GuestMemory::default();
        for region in 0..32 {
            memory = memory
                .with_region(place(region << 12, 0x1000, 0), &file, MemoryTrust::Sealed)
                .expect("there is room");
        }
        assert!(memory.with_region(place(1 << 30, 0x1000, 0), &file, MemoryTrust::Sealed).is_err());
    }
}
