//! The SIMD level, as a value, and the functions that choose an implementation by it.

#![expect(
    unsafe_code,
    reason = "calls of what a CPU was asked for before, and memory that is not initialised"
)]

use alloc::vec::Vec;
use core::mem::MaybeUninit;
#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
use core::sync::atomic::{AtomicU8, Ordering};

use crate::ranges::{BLOCK, SHORT, each_range};
use crate::scalar;

/// A token for a SIMD level: detected once, stored, passed by value.
///
/// A token exists only for levels that the running processor supports, so calls need no further
/// check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd(Level);

/// The levels: the instructions with which sums and copies are computed.
///
/// Invariant: a variant other than `Scalar` is made only by [`Simd::available`], after
/// [`Level::is_supported`] said that this processor can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Avx2,
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Avx512,
    /// AVX-512 on AMD's Zen 4, which stores 64 bytes in two halves. Plain copies use AVX2, which
    /// takes 0.86 to 0.94 of the time for 1448 to 9000 bytes. Copies that prefetch `ahead` as they
    /// proceed use AVX-512, because AVX2 takes 1.03 to 1.07 of the time there.
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Zen4,
    #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
    Neon,
}

/// Every level that this build contains, from the slowest to the fastest.
const LEVELS: &[Level] = &[
    Level::Scalar,
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Level::Avx2,
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Level::Avx512,
    #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
    Level::Zen4,
    #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
    Level::Neon,
];

impl Simd {
    /// Returns the best level that this processor supports and whose registers the operating system
    /// saves on a context switch.
    ///
    /// The result of CPUID is cached, so that later calls are cheap. Callers should store the token
    /// all the same.
    pub fn detect() -> Simd {
        Simd::available().last().unwrap_or(Simd::scalar())
    }

    /// Returns the level that runs on every processor.
    pub const fn scalar() -> Simd {
        Simd(Level::Scalar)
    }

    /// Returns every level that this processor can run: scalar first, the choice of
    /// [`Simd::detect`] last.
    pub fn available() -> impl Iterator<Item = Simd> {
        LEVELS.iter().copied().filter(|level| level.is_supported()).map(Simd)
    }

    /// Returns the level's name: `"scalar"`, `"avx2"`, `"avx512"`, `"zen4"` or `"neon"`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx2 => "avx2",
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx512 => "avx512",
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Zen4 => "zen4",
            #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
            Level::Neon => "neon",
        }
    }

    /// Returns the one's-complement sum of `bytes` as big-endian 16-bit words (RFC 1071, section
    /// 1), folded to 16 bits.
    ///
    /// The value is the host's `u16`, as `u16::from_be_bytes` reads a word. An odd last byte is the
    /// high byte of a word whose low byte is 0. The result is 0 only if every byte is 0; any other
    /// sum congruent to 0 modulo 0xFFFF is 0xFFFF. The checksum of a header field is the complement
    /// of this sum.
    #[inline]
    pub fn sum(self, bytes: &[u8]) -> u16 {
        if bytes.len() < SHORT {
            scalar::finish(scalar::sum_short(bytes))
        } else {
            self.sum_long(bytes)
        }
    }

    /// Returns the sum of `bytes` like [`Simd::sum`], and hints that the first `bytes.len()` bytes
    /// of `ahead`, or all if there are fewer, will be read soon.
    ///
    /// With AVX-512 the hints are spread over the sum, one cache line of `ahead` per cache line of
    /// `bytes`, because many hints at once would delay the loads. On other levels they precede the
    /// sum, as by [`prefetch_range`](crate::prefetch_range).
    #[inline]
    pub fn sum_ahead(self, bytes: &[u8], ahead: &[u8]) -> u16 {
        match self.0 {
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx512 | Level::Zen4
                if (SHORT..=BLOCK.min(ahead.len())).contains(&bytes.len()) =>
            {
                // SAFETY: the token says that this processor has AVX-512 F and BW (invariant of
                // `Level`).
                scalar::finish(unsafe { crate::avx512::sum_ahead(bytes, ahead) })
            }
            _ => {
                crate::prefetch_range(ahead, bytes.len());
                self.sum(bytes)
            }
        }
    }

    /// Writes the sum of each of `ranges`, as by [`Simd::sum`], with one dispatch for all.
    ///
    /// # Panics
    /// If `ranges` and `sums` differ in length; then no sum is written.
    pub fn sum_batch(self, ranges: &[&[u8]], sums: &mut [u16]) {
        assert_eq!(ranges.len(), sums.len(), "each range needs one place for its sum");
        match self.0 {
            Level::Scalar => each_range(ranges, sums, scalar::sum),
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX2 (invariant of `Level`).
            Level::Avx2 => unsafe { crate::avx2::sum_batch(ranges, sums) },
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX-512 F and BW (invariant of
            // `Level`).
            Level::Avx512 | Level::Zen4 => unsafe { crate::avx512::sum_batch(ranges, sums) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
            Level::Neon => each_range(ranges, sums, crate::neon::sum),
        }
    }

    /// Copies `source` to `destination` and returns the sum of the bytes, as by [`Simd::sum`], in
    /// one pass.
    ///
    /// # Panics
    /// If `source` and `destination` differ in length; then nothing is written.
    #[inline]
    pub fn copy_and_sum(self, source: &[u8], destination: &mut [u8]) -> u16 {
        // SAFETY: `MaybeUninit<u8>` has the size and alignment of `u8`, and the callees write only
        // initialised bytes to the slice.
        let destination =
            unsafe { &mut *(core::ptr::from_mut(destination) as *mut [MaybeUninit<u8>]) };
        self.copy_and_sum_uninit(source, destination)
    }

    /// Appends `bytes` to `vector` and returns their sum, as by [`Simd::sum`], in one pass, with
    /// hints for `ahead` as by [`Simd::sum_ahead`].
    #[inline]
    pub fn extend_and_sum_ahead(self, vector: &mut Vec<u8>, bytes: &[u8], ahead: &[u8]) -> u16 {
        vector.reserve(bytes.len());
        let length = vector.len();
        let place = &mut vector.spare_capacity_mut()[..bytes.len()];
        let sum = if self.paces_hints(bytes, ahead) {
            self.copy_and_sum_paced(bytes, place, ahead)
        } else {
            crate::prefetch_range(ahead, bytes.len());
            self.copy_and_sum_uninit(bytes, place)
        };
        // SAFETY: `bytes.len()` bytes after the vector's length have just been written, within its
        // capacity.
        unsafe { vector.set_len(length + bytes.len()) };
        sum
    }

    /// Copies and sums like [`Simd::copy_and_sum`]. With AVX-512 it also hints, at the pace of the
    /// copy, that the first `source.len()` bytes of `ahead` will be read soon. Other levels give no
    /// hint: the hardware prefetcher finds data that follows `source` in memory.
    ///
    /// # Panics
    /// As [`Simd::copy_and_sum`].
    #[inline]
    pub fn copy_and_sum_ahead(self, source: &[u8], destination: &mut [u8], ahead: &[u8]) -> u16 {
        assert_eq!(
            source.len(),
            destination.len(),
            "a copy needs a destination of the source's length"
        );
        // SAFETY: as in `copy_and_sum`.
        let destination =
            unsafe { &mut *(core::ptr::from_mut(destination) as *mut [MaybeUninit<u8>]) };
        if self.paces_hints(source, ahead) {
            self.copy_and_sum_paced(source, destination, ahead)
        } else {
            self.copy_and_sum_uninit(source, destination)
        }
    }

    /// Returns whether this level can prefetch `ahead` line by line while it copies `source`.
    #[inline(always)]
    #[cfg_attr(
        not(any(target_arch = "x86", target_arch = "x86_64")),
        expect(unused_variables, reason = "hints are paced by AVX-512 only")
    )]
    fn paces_hints(self, source: &[u8], ahead: &[u8]) -> bool {
        match self.0 {
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx512 | Level::Zen4 => (SHORT..=BLOCK.min(ahead.len())).contains(&source.len()),
            _ => false,
        }
    }

    /// Copies and sums, and prefetches `ahead` line by line meanwhile, if
    /// [`paces_hints`](Self::paces_hints) returned `true`.
    ///
    /// # Panics
    /// As [`Simd::copy_and_sum`].
    #[inline(always)]
    #[cfg_attr(
        not(any(target_arch = "x86", target_arch = "x86_64")),
        expect(unused_variables, reason = "hints are paced by AVX-512 only")
    )]
    fn copy_and_sum_paced(
        self,
        source: &[u8],
        destination: &mut [MaybeUninit<u8>],
        ahead: &[u8],
    ) -> u16 {
        match self.0 {
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX-512 F and BW (invariant of
            // `Level`).
            Level::Avx512 | Level::Zen4 => scalar::finish(unsafe {
                crate::avx512::copy_and_sum_ahead(source, destination, ahead)
            }),
            _ => self.copy_and_sum_uninit(source, destination),
        }
    }

    /// Copies and sums like [`Simd::copy_and_sum`], to a `destination` that need not be
    /// initialised. Afterwards every byte of it is.
    ///
    /// # Panics
    /// If `source` and `destination` differ in length; then nothing is written.
    #[inline]
    fn copy_and_sum_uninit(self, source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u16 {
        assert_eq!(
            source.len(),
            destination.len(),
            "a copy needs a destination of the source's length"
        );
        if source.len() < SHORT {
            scalar::finish(scalar::copy_and_sum_short(source, destination))
        } else {
            self.copy_and_sum_long(source, destination)
        }
    }

    fn sum_long(self, bytes: &[u8]) -> u16 {
        scalar::finish(if bytes.len() <= BLOCK {
            self.sum_block(bytes)
        } else {
            self.sum_blocks(bytes)
        })
    }

    #[cold]
    fn sum_blocks(self, bytes: &[u8]) -> u64 {
        bytes.chunks(BLOCK).map(|block| self.sum_block(block)).fold(0, scalar::add)
    }

    #[inline]
    fn copy_and_sum_long(self, source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u16 {
        scalar::finish(if source.len() <= BLOCK {
            self.copy_and_sum_block(source, destination)
        } else {
            self.copy_and_sum_blocks(source, destination)
        })
    }

    #[cold]
    fn copy_and_sum_blocks(self, source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
        let blocks = source.chunks(BLOCK).zip(destination.chunks_mut(BLOCK));
        blocks
            .map(|(source, destination)| self.copy_and_sum_block(source, destination))
            .fold(0, scalar::add)
    }

    /// Returns the unfolded sum of at most [`BLOCK`] bytes.
    #[inline(always)]
    fn sum_block(self, bytes: &[u8]) -> u64 {
        match self.0 {
            Level::Scalar => scalar::sum(bytes),
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX2 (invariant of `Level`).
            Level::Avx2 => unsafe { crate::avx2::sum(bytes) },
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX-512 F and BW (invariant of
            // `Level`).
            Level::Avx512 | Level::Zen4 => unsafe { crate::avx512::sum(bytes) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
            Level::Neon => crate::neon::sum(bytes),
        }
    }

    /// Copies at most [`BLOCK`] bytes between slices of equal length, and returns their unfolded
    /// sum.
    #[inline(always)]
    fn copy_and_sum_block(self, source: &[u8], destination: &mut [MaybeUninit<u8>]) -> u64 {
        match self.0 {
            Level::Scalar => scalar::copy_and_sum(source, destination),
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX2 (invariant of `Level`).
            Level::Avx2 | Level::Zen4 => unsafe { crate::avx2::copy_and_sum(source, destination) },
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            // SAFETY: the token says that this processor has AVX-512 F and BW (invariant of
            // `Level`).
            Level::Avx512 => unsafe { crate::avx512::copy_and_sum(source, destination) },
            #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
            Level::Neon => crate::neon::copy_and_sum(source, destination),
        }
    }
}

impl Level {
    /// Returns whether this processor, under this operating system, can run the level.
    fn is_supported(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx2 => has_avx2::get(),
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Avx512 => has_avx512::get(),
            // AMD's family 25 is Zen 3 and Zen 4; of these only Zen 4 has AVX-512.
            #[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
            Level::Zen4 => has_avx2::get() && has_avx512::get() && is_amd_family_25(),
            // NEON is part of the aarch64 baseline, and this module is compiled only with it.
            #[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
            Level::Neon => true,
        }
    }
}

#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
cpufeatures::new!(has_avx2, "avx2");
#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
cpufeatures::new!(has_avx512, "avx512f", "avx512bw");

/// Returns whether this is a processor of AMD's family 25 (Zen 3, Zen 4). The answer is cached: in
/// a virtual machine CPUID takes a microsecond or more.
#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
fn is_amd_family_25() -> bool {
    #[cfg(target_arch = "x86")]
    use core::arch::x86::__cpuid;
    #[cfg(target_arch = "x86_64")]
    use core::arch::x86_64::__cpuid;

    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    if cfg!(miri) {
        return false;
    }
    if ANSWER.load(Ordering::Relaxed) == UNKNOWN {
        // SAFETY: every processor that has AVX-512 has CPUID.
        #[allow(unused_unsafe, reason = "safe from some version of Rust on")]
        let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
        let says = |register: u32, letters: &[u8; 4]| register == u32::from_le_bytes(*letters);
        let is_amd =
            says(vendor.ebx, b"Auth") && says(vendor.edx, b"enti") && says(vendor.ecx, b"cAMD");
        // From 15 on, the extended family is added to the base family.
        let family = (version.eax >> 8 & 0xf) + (version.eax >> 20 & 0xff);
        ANSWER.store(if is_amd && family == 25 { YES } else { NO }, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}
