//! Sets of CPUs, in the formats of sysfs.
//!
//! Files such as `rps_cpus` hold hexadecimal bitmaps in groups of 32 bits, separated by commas, the
//! highest first. [`CpuMask::parse`] accepts the same text as the kernel's `bitmap_parse`;
//! [`CpuMask::sysfs`] writes the kernel's output format (`%*pb`). Lists (`0-3,8`) look similar but
//! mean something else, so they have a [separate constructor](CpuMask::parse_list).

mod list;
mod parse;

use core::fmt;
use core::ops::{BitAnd, BitOr, Sub};

pub use list::{CpuList, ListError};
pub use parse::MaskError;

/// Maximum number of CPUs in a mask: the kernel's `NR_CPUS` on the largest machines.
pub const MAX_CPUS: usize = 8192;

/// Number of CPUs in a group of a bitmap, as sysfs shows it.
const GROUP: usize = 32;

const GROUPS: usize = MAX_CPUS / GROUP;

/// The number of a CPU, below [`MAX_CPUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(u16);

impl Cpu {
    /// Returns the CPU with this number, or `None` if it is [`MAX_CPUS`] or more.
    #[inline]
    pub const fn new(number: usize) -> Option<Self> {
        if number < MAX_CPUS { Some(Cpu(number as u16)) } else { None }
    }

    /// Returns the CPU's number.
    #[inline]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A set of CPUs. An empty one means that steering is off.
///
/// It has a fixed size of 1 KiB and never allocates.
///
/// ```
/// use superpacket_steer::CpuMask;
///
/// let mask = CpuMask::parse("1,,5", 64)?;
/// assert_eq!(mask.list().to_string(), "0,2,32");
/// assert_eq!(mask.sysfs(64).to_string(), "00000001,00000005");
/// # Ok::<(), superpacket_steer::MaskError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CpuMask {
    /// Bitmap in groups of 32 CPUs, the lowest first.
    groups: [u32; GROUPS],
}

impl CpuMask {
    /// The empty set.
    pub const EMPTY: CpuMask = CpuMask { groups: [0; GROUPS] };

    /// Creates a set of the first `count` CPUs, from 0; at most [`MAX_CPUS`].
    pub fn first_cpus(count: usize) -> Self {
        (0..count.min(MAX_CPUS)).filter_map(Cpu::new).collect()
    }

    /// Adds a CPU; returns `false` if it was already in the set.
    pub fn insert(&mut self, cpu: Cpu) -> bool {
        let absent = !self.contains(cpu);
        self.groups[cpu.number() / GROUP] |= 1 << (cpu.number() % GROUP);
        absent
    }

    /// Removes a CPU; returns `false` if it was not in the set.
    pub fn remove(&mut self, cpu: Cpu) -> bool {
        let present = self.contains(cpu);
        self.groups[cpu.number() / GROUP] &= !(1 << (cpu.number() % GROUP));
        present
    }

    /// Returns whether the CPU is in the set.
    #[inline]
    pub const fn contains(&self, cpu: Cpu) -> bool {
        self.groups[cpu.number() / GROUP] >> (cpu.number() % GROUP) & 1 == 1
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.groups.iter().map(|group| group.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|&group| group == 0)
    }

    /// Returns whether all CPUs of this set are in `other`.
    pub fn is_subset(&self, other: &CpuMask) -> bool {
        self.groups.iter().zip(&other.groups).all(|(own, others)| own & !others == 0)
    }

    /// Returns the CPU with the lowest number.
    pub fn first(&self) -> Option<Cpu> {
        self.iter().next()
    }

    /// Returns the CPU with the highest number.
    pub fn last(&self) -> Option<Cpu> {
        let (index, group) =
            self.groups.iter().enumerate().rev().find(|&(_, &group)| group != 0)?;
        Cpu::new(index * GROUP + group.ilog2() as usize)
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> Cpus<'_> {
        Cpus { mask: self, group: 0, left: self.groups[0] }
    }

    /// Formats the set as the kernel does on a machine with `cpus` possible CPUs (`nr_cpu_ids`):
    /// groups of 8 hexadecimal digits, the highest first. The first group has only the digits that
    /// its CPUs need. CPUs from `cpus` on are not shown.
    pub const fn sysfs(&self, cpus: usize) -> SysfsMask<'_> {
        SysfsMask { mask: self, cpus: if cpus < MAX_CPUS { cpus } else { MAX_CPUS } }
    }

    /// Formats the set as a list: `0-3,8`.
    pub const fn list(&self) -> CpuList<'_> {
        CpuList::new(self)
    }

    fn combined(&self, other: &CpuMask, combine: impl Fn(u32, u32) -> u32) -> CpuMask {
        CpuMask {
            groups: core::array::from_fn(|index| combine(self.groups[index], other.groups[index])),
        }
    }
}

impl Default for CpuMask {
    fn default() -> Self {
        CpuMask::EMPTY
    }
}

impl fmt::Debug for CpuMask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CpuMask({})", self.list())
    }
}

/// Formats the set as the kernel does on a machine whose last CPU is the last CPU of the set.
impl fmt::Display for CpuMask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sysfs(self.last().map_or(1, |last| last.number() + 1)).fmt(formatter)
    }
}

impl FromIterator<Cpu> for CpuMask {
    fn from_iter<I: IntoIterator<Item = Cpu>>(cpus: I) -> Self {
        let mut mask = CpuMask::EMPTY;
        mask.extend(cpus);
        mask
    }
}

impl Extend<Cpu> for CpuMask {
    fn extend<I: IntoIterator<Item = Cpu>>(&mut self, cpus: I) {
        cpus.into_iter().for_each(|cpu| {
            self.insert(cpu);
        });
    }
}

/// Returns the CPUs that are in both sets.
impl BitAnd for &CpuMask {
    type Output = CpuMask;

    fn bitand(self, other: &CpuMask) -> CpuMask {
        self.combined(other, |own, others| own & others)
    }
}

/// Returns the CPUs that are in either set.
impl BitOr for &CpuMask {
    type Output = CpuMask;

    fn bitor(self, other: &CpuMask) -> CpuMask {
        self.combined(other, |own, others| own | others)
    }
}

/// Returns the CPUs of the left set that are not in the right set.
impl Sub for &CpuMask {
    type Output = CpuMask;

    fn sub(self, other: &CpuMask) -> CpuMask {
        self.combined(other, |own, others| own & !others)
    }
}

impl<'a> IntoIterator for &'a CpuMask {
    type Item = Cpu;
    type IntoIter = Cpus<'a>;

    fn into_iter(self) -> Cpus<'a> {
        self.iter()
    }
}

/// An iterator over the CPUs of a set, in ascending order.
#[derive(Clone, Debug)]
pub struct Cpus<'a> {
    mask: &'a CpuMask,
    group: usize,
    /// The bits of the current group whose CPUs have not been returned yet.
    left: u32,
}

impl Iterator for Cpus<'_> {
    type Item = Cpu;

    fn next(&mut self) -> Option<Cpu> {
        while self.left == 0 {
            self.group += 1;
            self.left = *self.mask.groups.get(self.group)?;
        }
        let bit = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        Cpu::new(self.group * GROUP + bit)
    }
}

/// A set of CPUs, formatted as in sysfs: see [`CpuMask::sysfs`].
#[derive(Clone, Copy, Debug)]
pub struct SysfsMask<'a> {
    mask: &'a CpuMask,
    cpus: usize,
}

impl fmt::Display for SysfsMask<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.cpus.div_ceil(GROUP);
        for index in (0..groups).rev() {
            let bits = (self.cpus - index * GROUP).min(GROUP);
            let shown = self.mask.groups[index] & (u32::MAX >> (GROUP - bits));
            let digits = bits.div_ceil(4);
            write!(formatter, "{shown:0digits$x}{}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn mask(cpus: &[usize]) -> CpuMask {
        cpus.iter().filter_map(|&cpu| Cpu::new(cpu)).collect()
    }

    #[test]
    fn cpus_are_added_found_and_taken_out() {
        let mut set = CpuMask::default();
        assert!(
            set.is_empty()
                && set.first().is_none()
                && set.last().is_none()
                && set.iter().next().is_none()
        );
        for cpu in [0, 31, 32, 8191] {
            let cpu = Cpu::new(cpu).expect("below 8192");
            assert!(set.insert(cpu) && !set.insert(cpu) && set.contains(cpu));
        }
        assert_eq!(set.iter().map(Cpu::number).collect::<Vec<_>>(), [0, 31, 32, 8191]);
        assert_eq!(
            (set.len(), set.first().map(Cpu::number), set.last().map(Cpu::number)),
            (4, Some(0), Some(8191))
        );
        let last = Cpu::new(8191).expect("below 8192");
        assert!(set.remove(last) && !set.remove(last) && !set.contains(last));
        assert_eq!((Cpu::new(8192), CpuMask::first_cpus(9999).len()), (None, MAX_CPUS));
    }

    #[test]
    fn the_kernel_s_groups() {
        for (cpus, room, shown) in [
            (&[0, 1, 2, 3, 4, 5, 6, 7][..], 8, "ff"),
            (&[0], 1, "1"),
            (&[0], 4, "1"),
            (&[0], 5, "01"),
            (&[], 12, "000"),
            (&[0], 32, "00000001"),
            (&[32], 33, "1,00000000"),
            (&[0], 64, "00000000,00000001"),
            (&[4, 40, 69], 70, "20,00000100,00000010"),
            (&[4, 40], 40, "00,00000010"),
        ] {
            assert_eq!(mask(cpus).sysfs(room).to_string(), shown, "{cpus:?} of {room}");
        }
        assert_eq!(mask(&[]).sysfs(0).to_string(), "");
        assert_eq!(mask(&[]).to_string(), "0");
        assert_eq!(mask(&[33]).to_string(), "2,00000000");
        assert_eq!(format!("{:?}", mask(&[0, 1, 5])), "CpuMask(0-1,5)");
        assert_eq!(mask(&[]).sysfs(99_999).to_string().len(), MAX_CPUS / 4 + GROUPS - 1);
    }

    proptest! {
        #[test]
        fn set_operations_work(left in prop::collection::btree_set(0usize..MAX_CPUS, 0..40), right in prop::collection::btree_set(0usize..MAX_CPUS, 0..40)) {
            let of = |set: &std::collections::BTreeSet<usize>| set.iter().filter_map(|&cpu| Cpu::new(cpu)).collect::<CpuMask>();
            let numbers = |mask: &CpuMask| mask.iter().map(Cpu::number).collect::<std::collections::BTreeSet<_>>();
            let (a, b) = (of(&left), of(&right));
            prop_assert_eq!(numbers(&(&a & &b)), &left & &right);
            prop_assert_eq!(numbers(&(&a | &b)), &left | &right);
            prop_assert_eq!(numbers(&(&a - &b)), &left - &right);
            prop_assert_eq!(a.is_subset(&b), left.is_subset(&right));
            prop_assert!((&a & &b).is_subset(&a) && a.is_subset(&(&a | &b)));
            prop_assert_eq!((a.len(), a.last().map(Cpu::number)), (left.len(), left.last().copied()));
            // The output parses to the same set, whatever the width.
            for cpus in [MAX_CPUS, left.last().map_or(1, |last| last + 1)] {
                prop_assert_eq!(CpuMask::parse(&a.sysfs(cpus).to_string(), cpus), Ok(a.clone()));
            }
            prop_assert_eq!(CpuMask::parse_list(&a.list().to_string(), MAX_CPUS), Ok(a));
        }
    }
}
