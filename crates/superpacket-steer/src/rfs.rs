//! Receive flow steering: the CPU on which a flow is read.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

use superpacket::packet::FlowHash;

use crate::mask::{Cpu, MAX_CPUS};

/// The most entries that a table may have (the kernel's `rps_sock_flow_sysctl`).
pub const MAX_FLOW_ENTRIES: u32 = 1 << 29;

/// A table of flows is asked to be larger than the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("EINVAL: {asked} entries: a table of flows has {MAX_FLOW_ENTRIES} at most")]
pub struct TooManyFlows {
    /// How many entries were asked for.
    pub asked: u64,
}

/// How many entries a table of flows has if so many are asked for (`rps_sock_flow_entries`, `rps_flow_cnt`): the next power of two, or none.
///
/// # Errors
/// [`TooManyFlows`] above [`MAX_FLOW_ENTRIES`].
pub fn flow_entries(asked: u64) -> Result<u32, TooManyFlows> {
    match u32::try_from(asked) {
        Ok(0) => Ok(0),
        Ok(entries) if entries <= MAX_FLOW_ENTRIES => Ok(entries.next_power_of_two()),
        _ => Err(TooManyFlows { asked }),
    }
}

/// On which CPU each flow was read last (the kernel's `rps_sock_flow_table`, of `rps_sock_flow_entries` entries).
///
/// Whoever reads a flow [records](Self::record) it; the receiving side asks. Both may at any time, from any thread: an entry is one word, and a stale one costs nothing but a packet
/// on the CPU before. An entry holds a CPU and as many bits of the hash as there is room for, so that flows that share an entry are mostly told apart.
#[derive(Debug)]
pub struct SockFlowTable {
    entries: Box<[AtomicU32]>,
    /// The bits of an entry that are a CPU's. All of them set: nobody has read the flow.
    cpu_bits: u32,
}

impl SockFlowTable {
    /// A table of as many [entries](flow_entries) as asked for, on a machine with `cpus` CPUs (1 to [`MAX_CPUS`], other numbers are brought into that range). `None` if none are asked for: the table is
    /// switched off. It takes 4 bytes an entry.
    ///
    /// # Errors
    /// [`TooManyFlows`] above [`MAX_FLOW_ENTRIES`].
    pub fn new(asked: u64, cpus: usize) -> Result<Option<Self>, TooManyFlows> {
        let entries = flow_entries(asked)?;
        if entries == 0 {
            return Ok(None);
        }
        // One more than the CPUs, so that all bits set are no CPU's number.
        let cpu_bits = (cpus.clamp(1, MAX_CPUS) as u32 + 1).next_power_of_two() - 1;
        Ok(Some(SockFlowTable { entries: (0..entries).map(|_| AtomicU32::new(cpu_bits)).collect(), cpu_bits }))
    }

    /// How many entries there are.
    pub const fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Notes that a flow is read on this CPU (`rps_record_sock_flow`). A flow without a hash (0), and a CPU beyond the machine's, are not noted.
    #[inline]
    pub fn record(&self, hash: FlowHash, cpu: Cpu) {
        let number = cpu.number() as u32;
        if hash.0 == 0 || number >= self.cpu_bits {
            return;
        }
        let (value, entry) = (hash.0 & !self.cpu_bits | number, self.entry(hash));
        // The line stays shared while nothing changes.
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Relaxed);
        }
    }

    /// The CPU that the flow was read on last; `None` if nobody did, or its entry is another flow's now.
    #[inline]
    pub fn cpu(&self, hash: FlowHash) -> Option<Cpu> {
        let value = self.entry(hash).load(Ordering::Relaxed);
        let number = value & self.cpu_bits;
        if hash.0 == 0 || (value ^ hash.0) & !self.cpu_bits != 0 || number == self.cpu_bits { None } else { Cpu::new(number as usize) }
    }

    #[inline]
    fn entry(&self, hash: FlowHash) -> &AtomicU32 {
        // The number of entries is a power of two.
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
        for (asked, entries) in [(0, 0), (1, 1), (3, 4), (4096, 4096), (4097, 8192), (1 << 29, 1 << 29)] {
            assert_eq!(flow_entries(asked), Ok(entries), "{asked}");
        }
        for asked in [(1 << 29) + 1, 1 << 32, u64::MAX] {
            assert_eq!(flow_entries(asked), Err(TooManyFlows { asked }));
            assert!(SockFlowTable::new(asked, 4).is_err());
        }
        assert!(SockFlowTable::new(0, 4).expect("off").is_none());
        assert_eq!(SockFlowTable::new(1000, 4).expect("room").map(|table| table.entries()), Some(1024));
    }

    #[test]
    fn a_flow_is_found_where_it_was_read() {
        // With 4 CPUs and 8 entries, 3 bits of a hash choose the entry and 29 tell flows apart.
        let table = SockFlowTable::new(8, 4).expect("room").expect("on");
        let (one, other, same_entry) = (FlowHash(0xabcd_0001), FlowHash(0xabcd_0002), FlowHash(0x1234_0001));
        assert!((0..64u32).all(|hash| table.cpu(FlowHash(hash)).is_none()), "nobody has read anything");
        table.record(one, cpu(3));
        table.record(other, cpu(0));
        assert_eq!((table.cpu(one), table.cpu(other), table.cpu(same_entry)), (Some(cpu(3)), Some(cpu(0)), None));
        table.record(one, cpu(1));
        assert_eq!(table.cpu(one), Some(cpu(1)));
        table.record(same_entry, cpu(2));
        assert_eq!((table.cpu(one), table.cpu(same_entry)), (None, Some(cpu(2))), "the newer flow has the entry");
        table.record(FlowHash(0), cpu(2));
        table.record(other, cpu(7));
        assert_eq!((table.cpu(FlowHash(0)), table.cpu(other)), (None, Some(cpu(0))), "no hash, no such CPU");
        let large = SockFlowTable::new(2, MAX_CPUS).expect("room").expect("on");
        large.record(one, cpu(MAX_CPUS - 1));
        assert_eq!(large.cpu(one), Some(cpu(MAX_CPUS - 1)));
    }
}
