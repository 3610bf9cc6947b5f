//! A split ring, from the driver's side.

use crate::memory::Memory;

/// Bits of a descriptor's flags.
pub mod descriptor_flag {
    /// The buffer continues with the descriptor `next` (`VRING_DESC_F_NEXT`).
    pub const NEXT: u16 = 1;
    /// The device may write to the buffer (`VRING_DESC_F_WRITE`).
    pub const WRITE: u16 = 2;
    /// The buffer contains a table of descriptors (`VRING_DESC_F_INDIRECT`).
    pub const INDIRECT: u16 = 4;
}

/// A descriptor of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Bits of [`descriptor_flag`].
    pub flags: u16,
    /// Number of the next descriptor.
    pub next: u16,
}

/// A split ring, of which the guest is the driver.
#[derive(Debug)]
pub struct DriverRing {
    /// Number of descriptors.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    /// Index, modulo 65,536, of the next entry that the guest writes to the available ring.
    pub next_available: u16,
    /// Index, modulo 65,536, of the next entry that the guest reads from the used ring.
    pub next_used: u16,
    free: Vec<u16>,
    /// The descriptors of each offered chain, by the index of its first descriptor (head).
    chains: Vec<Vec<u16>>,
}

impl DriverRing {
    /// Lays out an empty ring at a guest-physical address, a multiple of 16. Nothing is written, so
    /// that the memory must be zero there.
    pub fn new(address: u64, size: u16) -> Self {
        let entries = u64::from(size);
        let available = address + 16 * entries;
        let used = (available + 6 + 2 * entries).next_multiple_of(4);
        DriverRing {
            size,
            descriptors: address,
            available,
            used,
            next_available: 0,
            next_used: 0,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
        }
    }

    /// Returns the first guest-physical address after the ring.
    pub fn end(&self) -> u64 {
        self.used + 6 + 8 * u64::from(self.size)
    }

    /// Writes a descriptor.
    pub fn set(&self, memory: &Memory, index: u16, descriptor: Descriptor) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&descriptor.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&descriptor.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&descriptor.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&descriptor.next.to_le_bytes());
        memory.write(self.descriptors + 16 * u64::from(index), &bytes);
    }

    /// Returns the number of free descriptors.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the index of the first descriptor (head) that the next buffer of so many descriptors
    /// will have.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn peek_free(&self, descriptors: usize) -> u16 {
        self.free[self.free.len() - descriptors]
    }

    /// Makes a buffer available to the device, with one descriptor for each of `parts` (address and
    /// length). Returns the index of its first descriptor; `None` if there are not enough free
    /// descriptors.
    pub fn offer(
        &mut self,
        memory: &Memory,
        parts: &[(u64, u32)],
        is_writable: bool,
    ) -> Option<u16> {
        if parts.is_empty() || parts.len() > self.free.len() {
            return None;
        }
        let chain = self.free.split_off(self.free.len() - parts.len());
        for (place, &(address, length)) in parts.iter().enumerate() {
            let next = chain.get(place + 1).copied();
            let mut flags = if is_writable { descriptor_flag::WRITE } else { 0 };
            flags |= if next.is_some() { descriptor_flag::NEXT } else { 0 };
            let descriptor = Descriptor { address, length, flags, next: next.unwrap_or(0) };
            self.set(memory, chain[place], descriptor);
        }
        let head = chain[0];
        self.chains[usize::from(head)] = chain;
        self.offer_head(memory, head);
        Some(head)
    }

    /// Makes a chain of descriptors available by the index of its first one, without checking them.
    pub fn offer_head(&mut self, memory: &Memory, head: u16) {
        let slot = u64::from(self.next_available % self.size);
        memory.write(self.available + 4 + 2 * slot, &head.to_le_bytes());
        self.next_available = self.next_available.wrapping_add(1);
        self.set_available_index(memory, self.next_available);
    }

    /// Writes the index of the available ring.
    pub fn set_available_index(&self, memory: &Memory, index: u16) {
        memory.write(self.available + 2, &index.to_le_bytes());
    }

    /// Tells the device whether it may omit notifications of used buffers
    /// (`VRING_AVAIL_F_NO_INTERRUPT`).
    pub fn set_no_interrupt(&self, memory: &Memory, no_interrupt: bool) {
        memory.write(self.available, &u16::from(no_interrupt).to_le_bytes());
    }

    /// Writes the index of the used ring at which the device is to notify the guest (`used_event`).
    pub fn set_used_event(&self, memory: &Memory, index: u16) {
        memory.write(self.available + 4 + 2 * u64::from(self.size), &index.to_le_bytes());
    }

    /// Returns whether the device wants to be notified of the last `offered` buffers.
    pub fn is_kick_wanted(&self, memory: &Memory, event_index: bool, offered: u16) -> bool {
        if event_index {
            let event = memory.read_u16(self.used + 4 + 8 * u64::from(self.size));
            let now = self.next_available;
            now.wrapping_sub(event).wrapping_sub(1) < offered
        } else {
            memory.read_u16(self.used) & 1 == 0
        }
    }

    /// Returns the next used buffer: the index of its first descriptor, and the number of bytes
    /// that the device wrote. The descriptors become free again. `None` if there is no used buffer.
    pub fn take_used(&mut self, memory: &Memory) -> Option<(u16, u32)> {
        if memory.read_u16(self.used + 2) == self.next_used {
            return None;
        }
        let slot = u64::from(self.next_used % self.size);
        let entry = memory.read(self.used + 4 + 8 * slot, 8);
        self.next_used = self.next_used.wrapping_add(1);
        let number = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
        let head = u16::try_from(number(0)).expect("the device returns what it was offered");
        let chain = std::mem::take(&mut self.chains[usize::from(head)]);
        self.free.extend(chain.into_iter().rev());
        Some((head, number(4)))
    }
}
