//! Aggregation: many received packets in, few large ones out.
//!
//! [`Aggregator`] holds packets that own their buffers, across polls if need be.
//! [`BatchAggregator`] borrows the packets of one call, or joins them in their own buffers, and
//! holds nothing when the call returns. Both are one piece of code, `receive.rs`, in which the life
//! of a packet reads from top to bottom: `flow` is what is held, `examine`, `lro` and `mask` are
//! the rules, `identity` and `table` find the flow.
//!
//! In GRO mode a packet that was received as a super-packet ([`RxPacket::gso`]) merges further, of
//! TCP and UDP, if the segments that it stands for would have merged: of the flow's segment size,
//! in sequence, with identifications that go on by their number. Limits count segments. What ends
//! with a shorter segment, PSH or FIN ends the merged packet. Linux sets PSH on every super-packet
//! of TCP that it hands to a device: these merge with each other only where the policy
//! [gives up](Policy::merge_past_push) that flag of the segments in the middle.
//!
//! Where the policy [says so](Policy::merge_uneven), TCP packets merge that no [`Gso`] could
//! restore: the super-packet then has [parts].
//!
//! [`Gso`]: crate::segment::Gso
//! [parts]: crate::super_packet::SuperPacket::parts
//! [`RxPacket::gso`]: crate::packet::RxPacket::gso

mod acknowledged;
mod aggregator;
mod batch;
mod by_flow;
mod counters;
mod examine;
mod flow;
#[cfg(feature = "std")]
mod gathered;
mod identity;
mod in_place;
mod lro;
mod mask;
mod out;
mod policy;
mod poll;
mod receive;
mod segments;
mod table;

pub use crate::reason::Reason;
pub use aggregator::Aggregator;
pub use batch::{BatchAggregator, BorrowPacket, Borrowed, BufferIndex};
pub use counters::Counters;
#[cfg(feature = "std")]
pub use gathered::MAX_SLICES;
pub use identity::HashKey;
pub use in_place::NoHeadroom;
pub use policy::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH, Mode, Policy, Storage};
