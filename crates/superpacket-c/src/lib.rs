//! `libsuperpacket`: the engine for C programs.
//!
//! The functions are for C, and so are their comments: they become `include/superpacket.h`. From
//! Rust use the crate `superpacket`. Here is how it is built.
//!
//! # What is unsafe, and why it holds
//!
//! What a caller says of a pointer cannot be checked: that it points to so many bytes, which nobody
//! else changes. Each function's comment demands it. What can be checked is checked before the
//! first use: NULL, alignment, lengths and counts against limits, wrap-around, values of integers
//! that name something, sizes of structures. From there on packets are slices (`packet`) and the
//! caller's arrays are slices of `MaybeUninit` (`memory`), and the engine is safe code.
//!
//! # No panic crosses the border
//!
//! Each function that does more than return a constant runs within `status::guard`, which catches
//! a panic; the object it happened in refuses further calls (`object`), as its state is not known.
//! Behind that, `extern "C"` functions abort rather than unwind. The allocator ends the process if
//! there is no memory, as Rust's does.
//!
//! # An ABI that lasts
//!
//! - Objects are opaque. Structures that say how (`sp_policy`, `sp_segment_options`) begin with
//!   their size, so fields can be added at their ends: 0 means "as ever" in each.
//! - Structures that come in arrays (`sp_packet`, `sp_output`), whose size is their stride, are
//!   fixed for as long as the soname stays.
//! - Integers that name something are integers, not enumerations: C may put any value in one.
//! - Counters and reasons are found by name; numbers may change.
//!
//! # Features
//!
//! `capi` is set by cargo-c, not by users: the shared library's symbols get versions.
// Where it is expected, the file says why.
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

/// Returns the version of the library that is loaded: "0.1.0".
///
/// \return a string of the library's own, valid for ever.
/// \note Any thread may call it at any time.
#[expect(unsafe_code, reason = "a name of the C interface")]
#[unsafe(no_mangle)]
pub extern "C" fn sp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
