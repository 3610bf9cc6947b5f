//! The engine's faces beside each other: packets owned and borrowed, given to a sink, gathered for
//! a write and joined in their own buffers. What one gives the others must give too, whatever the
//! sink, the policy and the packets are.

mod allocations;
mod borrowed;
mod failing;
mod faults;
mod gathered;
mod hostile;
mod in_place;
mod outer_checksum;
mod policies;
mod super_packets;
mod traffic;
