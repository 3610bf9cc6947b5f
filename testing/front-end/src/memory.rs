//! The memory of a guest: one file per region.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// The offset from a guest-physical address to the address in the front end's process.
pub const USER: u64 = 1 << 44;

/// A region of a guest's memory.
#[derive(Debug)]
pub struct MemoryRegion {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The file that contains the region, from its beginning.
    pub file: OwnedFd,
}

impl MemoryRegion {
    /// Creates a region of zeros in a memfd that is sealed against shrinking.
    pub fn new(address: u64, length: u64) -> Self {
        let region = MemoryRegion::unsealed(address, length);
        rustix::fs::fcntl_add_seals(&region.file, SealFlags::SHRINK).expect("it may be sealed");
        region
    }

    /// Creates a region of zeros in a memfd that can be shrunk.
    pub fn unsealed(address: u64, length: u64) -> Self {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("guest", flags).expect("a memfd");
        rustix::fs::ftruncate(&file, length).expect("memory");
        MemoryRegion { address, length, file }
    }

    /// Returns the region as vhost-user messages describe it: guest address, length, address in the
    /// front end's process, offset in the file.
    pub fn description(&self) -> [u64; 4] {
        [self.address, self.length, self.address + USER, 0]
    }
}

/// The memory of a guest.
#[derive(Debug)]
pub struct Memory {
    /// The regions.
    pub regions: Vec<MemoryRegion>,
}

impl Memory {
    /// Creates memory of zeros from the guest-physical address and length of each region.
    pub fn new(regions: &[(u64, u64)]) -> Self {
        let region = |&(address, length)| MemoryRegion::new(address, length);
        Memory { regions: regions.iter().map(region).collect() }
    }

    /// Writes bytes at a guest-physical address. They may span several regions; bytes outside of
    /// all regions are skipped.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.each_part(address, bytes.len(), |file, offset, range| {
            rustix::io::pwrite(file, &bytes[range], offset).expect("it is memory");
        });
    }

    /// Reads bytes at a guest-physical address. They may span several regions; bytes outside of all
    /// regions are 0.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.each_part(address, length, |file, offset, range| {
            rustix::io::pread(file, &mut bytes[range], offset).expect("it is memory");
        });
        bytes
    }

    /// Reads a little-endian number of 16 bits.
    pub fn read_u16(&self, address: u64) -> u16 {
        let bytes = self.read(address, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn each_part(
        &self,
        address: u64,
        length: usize,
        mut part: impl FnMut(BorrowedFd<'_>, u64, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < length {
            let here = address.wrapping_add(done as u64);
            let find = |region: &&MemoryRegion| {
                here.checked_sub(region.address).is_some_and(|offset| offset < region.length)
            };
            match self.regions.iter().find(find) {
                Some(region) => {
                    let offset = here - region.address;
                    let some = ((region.length - offset) as usize).min(length - done);
                    part(region.file.as_fd(), offset, done..done + some);
                    done += some;
                }
                None => done += 1,
            }
        }
    }
}
