//! `libsuperpacket`: the engine for C programs.
//!
//! The functions and their comments are written for C: `include/superpacket.h` is generated from
//! them. Rust programs use the crate `superpacket`. This page describes the implementation.
//!
//! # Unsafe code, and why it is sound
//!
//! Whether a caller's pointer points to that many bytes, and whether others change them, cannot be
//! checked. The comment of each function demands it. Everything else is checked before the first
//! use: NULL, alignment, limits of lengths and counts, wrap-around, named values and sizes of
//! structures. Then packets become slices (`packet`) and the caller's arrays slices of
//! `MaybeUninit` (`memory`), and the engine is safe code.
//!
//! # Panics do not cross the border
//!
//! Every function that does more than return a constant runs in `status::guard`, which catches
//! panics. The object in use then refuses further calls, since its state is unknown (`object`).
//! In addition, `extern "C"` functions abort instead of unwinding. Without memory, the allocator
//! ends the process, as usual in Rust.
//!
//! # A stable ABI
//!
//! - Objects are opaque. Structures with options (`sp_policy`, `sp_segment_options`) begin with
//!   their size, so that fields can be added at their end. In each, 0 means the old behaviour.
//! - Structures in arrays (`sp_packet`, `sp_output`) do not change while the soname stays, since
//!   their size is the array's stride.
//! - Named values are integers instead of enumerations, since C can put any value in an
//!   enumeration.
//! - Counters and reasons are found by name; their numbers may change.
//!
//! # Features
//!
//! cargo-c sets `capi`, which adds versions to the shared library's symbols. It is not for users.

// Files with unsafe code state the reason.
#![deny(unsafe_code)]
#![allow(non_camel_case_types, reason = "these are the names of the C interface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the comments are for C programs: what they must see to stands with each parameter"
)]

mod batch;
mod checksum;
mod counters;
mod hold;
mod layout;
mod memory;
mod object;
mod offload;
mod packet;
mod policy;
mod received;
mod segment;
mod segment_headers;
mod segment_memory;
mod space;
mod split;
mod status;
mod toeplitz;
mod virtio;

use std::ffi::c_char;

pub use batch::*;
pub use checksum::*;
pub use counters::*;
pub use hold::*;
pub use layout::*;
pub use memory::sp_iovec;
pub use offload::*;
pub use packet::*;
pub use policy::*;
pub use segment::*;
pub use segment_headers::*;
pub use space::*;
pub use split::*;
pub use status::*;
pub use toeplitz::*;
pub use virtio::*;

/// Returns the version of the loaded library: "0.1.0".
///
/// \return a static string.
/// \note Any thread may call it at any time.
#[expect(unsafe_code, reason = "a name of the C interface")]
#[unsafe(no_mangle)]
pub extern "C" fn sp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
