//! Aggregation: many received packets in, few large ones out.
//!
//! [`Aggregator`] holds packets that own their buffers, also across polls. [`BatchAggregator`]
//! borrows the packets of one call, or joins them in their own buffers, and holds none when the
//! call returns. Both use the code in `receive.rs`, which shows the life of a packet from top to
//! bottom. `flow` is a held flow; `examine`, `lro` and `mask` are the rules; `identity` and `table`
//! find the flow.
//!
//! In GRO mode a TCP or UDP packet that was received as a super-packet ([`RxPacket::gso`]) merges
//! further if its segments would have merged: they have the flow's segment size, are in sequence,
//! and their identifications continue. Limits count segments. A shorter last segment, PSH or FIN
//! ends the merged packet. Linux sets PSH on every TCP super-packet that it hands to a device.
//! These merge with each other only if the policy [gives up](Policy::merge_past_push) that flag on
//! the segments in the middle.
//!
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
pub use counters::AggregateCounters;
#[cfg(feature = "std")]
pub use gathered::MAX_SLICES;
pub use identity::HashKey;
pub use in_place::NoHeadroom;
pub use policy::{Delivery, MAX_BIG_LENGTH, MAX_IP_LENGTH, Mode, Policy, Storage};
