//! Virtual machines whose device is this process (vhost-user), without a system call per packet.

mod memory;
mod ring;

pub use memory::{GuestMemory, MemoryTrust, RegionPlace};
pub use ring::{Direction, MAX_RING_SIZE, RingError, RingFault, RingPlace, SplitRing, TakenBuffer};
