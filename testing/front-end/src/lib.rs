//! A virtual machine's side of a vhost-user device, for tests: its memory, its rings, and the front
//! end that passes both to the device by a socket. Tests can also violate the protocol.
//!
//! Memory is written and read by system calls, at the same time as the device uses it through its
//! mapping. So no unsafe code is needed, and nothing is assumed of the device.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod front_end;
mod guest;
mod memory;
mod ring;

pub use front_end::{FrontEnd, Reply, request};
pub use guest::{Guest, GuestSettings, ReceivedFrame, feature, protocol_feature};
pub use memory::{Memory, MemoryRegion, USER};
pub use ring::{Descriptor, DriverRing, descriptor_flag};
