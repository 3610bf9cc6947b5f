//! Receive flow steering (RFS): a table of the CPU on which each flow is read.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use superpacket::packet::FlowHash;

use crate::mask::{Cpu, MAX_CPUS};

/// Maximum entries of a table (the limit in the kernel's `rps_sock_flow_sysctl`).
pub const MAX_FLOW_ENTRIES: u32 = 1 << 29;

/// The requested flow table is larger than the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("EINVAL: {requested} entries: a flow table has at most {MAX_FLOW_ENTRIES}")]
pub struct TooManyFlows {
    /// Requested number of entries.
    pub requested: u64,
}

/// The reason why a flow table cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowTableError {
    /// The table is larger than the kernel allows.
    #[error(transparent)]
    TooMany(#[from] TooManyFlows),
    /// The memory for the table cannot be allocated.
    #[error("ENOMEM: {entries} entries: no memory for a flow table of this size")]
    NoMemory {
        /// Number of entries.
        entries: u32,
    },
}

/// Creates a table of `count` values; returns an error if the memory cannot be allocated.
pub(crate) fn try_table<T>(
    count: u32,
    values: impl Iterator<Item = T>,
) -> Result<Box<[T]>, FlowTableError> {
    let mut table = Vec::new();
    table
        .try_reserve_exact(count as usize)
        .map_err(|_| FlowTableError::NoMemory { entries: count })?;
    table.extend(values.take(count as usize));
    Ok(table.into_boxed_slice())
}

/// Rounds the requested entries of a flow table (`rps_sock_flow_entries`, `rps_flow_cnt`) up to a
/// power of two, as the kernel does; 0 stays 0.
///
/// # Errors
/// [`TooManyFlows`] above [`MAX_FLOW_ENTRIES`].
pub fn flow_entries(requested: u64) -> Result<u32, TooManyFlows> {
    match u32::try_from(requested) {
        Ok(0) => Ok(0),
        Ok(entries) if entries <= MAX_FLOW_ENTRIES => Ok(entries.next_power_of_two()),
        _ => Err(TooManyFlows { requested }),
    }
}

/// A table of the CPU on which each flow was last read (the kernel's `rps_sock_flow_table`, with
/// `rps_sock_flow_entries` entries).
///
/// The consumer of a flow [records](Self::record) its CPU; the receiving side [looks it
/// up](Self::cpu). Both are safe at any time from any thread: an entry is one word, and a stale one
/// only sends a packet to the previous CPU. An entry holds a CPU and as many bits of the hash as
/// fit beside it, so most flows that share an entry are distinguished.
#[derive(Debug)]
pub struct SockFlowTable {
    entries: Box<[AtomicU32]>,
    /// Mask of the bits of an entry that hold a CPU. If all are set, no CPU is recorded.
    cpu_bits: u32,
}

impl SockFlowTable {
    /// Creates a table of the requested [entries](flow_entries), 4 bytes each, on a machine with
    /// `cpus` CPUs (clamped to 1 to [`MAX_CPUS`]). Returns `None` if 0 are requested: RFS is off.
    ///
    /// # Errors
    /// [`FlowTableError`] above [`MAX_FLOW_ENTRIES`], or if the memory cannot be allocated.
    pub fn new(requested: u64, cpus: usize) -> Result<Option<Self>, FlowTableError> {
        let entries = flow_entries(requested)?;
        if entries == 0 {
            return Ok(None);
        }
        // One more than the number of CPUs, so that the value with all bits set is not a CPU.
        let cpu_bits = (cpus.clamp(1, MAX_CPUS) as u32 + 1).next_power_of_two() - 1;
        let entries = try_table(entries, core::iter::repeat_with(|| AtomicU32::new(cpu_bits)))?;
        Ok(Some(SockFlowTable { entries, cpu_bits }))
    }

    /// Returns the number of entries.
    pub const fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Records that a flow is read on this CPU (`rps_record_sock_flow`). A flow without a hash (0),
    /// or a CPU that the machine does not have, is ignored.
    #[inline]
    pub fn record(&self, hash: FlowHash, cpu: Cpu) {
        let number = cpu.number() as u32;
        if hash.0 == 0 || number >= self.cpu_bits {
            return;
        }
        let (value, entry) = (hash.0 & !self.cpu_bits | number, self.entry(hash));
        // Without a change there is no store, so the cache line stays shared between CPUs.
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the CPU on which the flow was last read, or `None` if no CPU is recorded for it or
    /// another flow has replaced its entry.
    #[inline]
    pub fn cpu(&self, hash: FlowHash) -> Option<Cpu> {
        let value = self.entry(hash).load(Ordering::Relaxed);
        let number = value & self.cpu_bits;
        if hash.0 == 0 || (value ^ hash.0) & !self.cpu_bits != 0 || number == self.cpu_bits {
            None
        } else {
            Cpu::new(number as usize)
        }
    }

    #[inline]
    fn entry(&self, hash: FlowHash) -> &AtomicU32 {
        // The mask is valid because the number of entries is a power of two.
        &self.entries[hash.0 as usize & (self.entries.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(number: usize) -> Cpu {
        Cpu::new(number).expect("below 8192")
    }

    #[test]
    fn tables_are_rounded_as_the_kernel_does() {
        for (requested, entries) in
            [(0, 0), (1, 1), (3, 4), (4096, 4096), (4097, 8192), (1 << 29, 1 << 29)]
        {
            assert_eq!(flow_entries(requested), Ok(entries), "{requested}");
        }
        for requested in [(1 << 29) + 1, 1 << 32, u64::MAX] {
            assert_eq!(flow_entries(requested), Err(TooManyFlows { requested }));
            assert!(SockFlowTable::new(requested, 4).is_err());
        }
        assert!(SockFlowTable::new(0, 4).expect("off").is_none());
        assert_eq!(
            SockFlowTable::new(1000, 4).expect("room").map(|table| table.entries()),
            Some(1024)
        );
    }

    #[test]
    fn a_flow_is_found_where_it_was_read() {
        // With 4 CPUs and 8 entries, 3 bits of a hash choose the entry and 29 distinguish flows.
        let table = SockFlowTable::new(8, 4).expect("room").expect("on");
        let (one, other, same_entry) =
            (FlowHash(0xabcd_0001), FlowHash(0xabcd_0002), FlowHash(0x1234_0001));
        assert!(
            (0..64u32).all(|hash| table.cpu(FlowHash(hash)).is_none()),
            "nobody has read anything"
        );
        table.record(one, cpu(3));
        table.record(other, cpu(0));
        assert_eq!(
            (table.cpu(one), table.cpu(other), table.cpu(same_entry)),
            (Some(cpu(3)), Some(cpu(0)), None)
        );
        table.record(one, cpu(1));
        assert_eq!(table.cpu(one), Some(cpu(1)));
        table.record(same_entry, cpu(2));
        assert_eq!(
            (table.cpu(one), table.cpu(same_entry)),
            (None, Some(cpu(2))),
            "the newer flow has the entry"
        );
        table.record(FlowHash(0), cpu(2));
        table.record(other, cpu(7));
        assert_eq!(
            (table.cpu(FlowHash(0)), table.cpu(other)),
            (None, Some(cpu(0))),
            "no hash, no such CPU"
        );
        let large = SockFlowTable::new(2, MAX_CPUS).expect("room").expect("on");
        large.record(one, cpu(MAX_CPUS - 1));
        assert_eq!(large.cpu(one), Some(cpu(MAX_CPUS - 1)));
    }
}
