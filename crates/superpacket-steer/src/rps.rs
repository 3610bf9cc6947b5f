//! Receive packet steering (RPS): the choice of a flow's CPU by its hash.

use alloc::boxed::Box;

use superpacket::packet::FlowHash;

use crate::mask::{Cpu, CpuMask};

/// The CPUs over which packets are spread (the kernel's `rps_map`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rps {
    cpus: Box<[Cpu]>,
}

impl Rps {
    /// Creates a map over the CPUs of the mask, which may be empty.
    pub fn new(mask: &CpuMask) -> Self {
        Rps { cpus: mask.iter().collect() }
    }

    /// Returns the CPU that the kernel chooses for a flow (`get_rps_cpu`): the hash is scaled to
    /// the number of CPUs, so its high bits decide. `None` if the flow stays where it is received:
    /// the mask is empty, or the hash is 0, which means that there is none.
    ///
    /// ```
    /// use superpacket::packet::FlowHash;
    /// use superpacket_steer::{CpuMask, Rps};
    ///
    /// let rps = Rps::new(&CpuMask::parse("f0", 8)?);
    /// assert_eq!(rps.cpu(FlowHash(0x51cc_c178)).map(|cpu| cpu.number()), Some(5));
    /// # Ok::<(), superpacket_steer::MaskError>(())
    /// ```
    #[inline]
    pub fn cpu(&self, hash: FlowHash) -> Option<Cpu> {
        if hash.0 == 0 { None } else { self.scaled(hash.0) }
    }

    /// Returns the CPU that a 32-bit number selects when it is scaled to the number of CPUs; `None`
    /// if there are no CPUs. Unlike in [`cpu`](Self::cpu), the number 0 has no special meaning.
    #[inline]
    pub(crate) fn scaled(&self, number: u32) -> Option<Cpu> {
        self.cpus.get(reciprocal_scale(number, self.cpus.len() as u32) as usize).copied()
    }

    /// Returns the CPUs, in ascending order.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }
}

/// Maps a 32-bit number evenly to `0..bound` (the kernel's `reciprocal_scale`).
#[inline]
pub(crate) const fn reciprocal_scale(number: u32, bound: u32) -> u32 {
    ((number as u64 * bound as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_choice() {
        let rps = Rps::new(&CpuMask::parse_list("1,4,9", 10).expect("a list"));
        let cpu = |hash: u32| rps.cpu(FlowHash(hash)).map(Cpu::number);
        // The boundaries of thirds of 2^32.
        for (hash, chosen) in [
            (1, 1),
            (0x5555_5555, 1),
            (0x5555_5556, 4),
            (0xaaaa_aaaa, 4),
            (0xaaaa_aaab, 9),
            (u32::MAX, 9),
        ] {
            assert_eq!(cpu(hash), Some(chosen), "{hash:08x}");
        }
        assert_eq!(cpu(0), None);
        assert_eq!(Rps::new(&CpuMask::EMPTY).cpu(FlowHash(5)), None);
        assert_eq!(
            Rps::new(&CpuMask::first_cpus(1)).cpu(FlowHash(u32::MAX)).map(Cpu::number),
            Some(0)
        );
    }
}
