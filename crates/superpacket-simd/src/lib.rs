#![doc = include_str!("../README.md")]
#![no_std]
#![deny(missing_docs)]
// Each module with unsafe code expects the lint and gives the reason.
#![deny(unsafe_code)]

extern crate alloc;

#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
mod avx2;
#[cfg(all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse2"))]
mod avx512;
mod equal;
mod level;
#[cfg(all(target_arch = "aarch64", target_endian = "little", target_feature = "neon"))]
mod neon;
mod prefetch;
mod ranges;
mod scalar;

pub use equal::equal_masked;
pub use level::Simd;
pub use prefetch::{prefetch_lines, prefetch_range, prefetch_read, prefetch_write};
