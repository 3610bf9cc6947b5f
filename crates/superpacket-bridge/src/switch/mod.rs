//! The part of the bridge that decides to which ports a packet goes, as IEEE 802.1D and 802.1Q say,
//! and limits how many packets pass.
//!
//! ```text
//! frame      finds the addresses of a packet, and where its IP header is
//! table      stores learned and static addresses, each with its port
//! fdb        describes the entries of that table to users
//! vlan       stores the VLANs of which a port is a member
//! tag        moves VLAN tags between a frame and its metadata
//! multicast  learns which ports have joined a group (IGMP and MLD snooping)
//! loops      detects frames that return through a loop in the network
//! rates      describes the rate limits and storm limits of a port
//! bucket     applies those limits
//! ```

pub(crate) mod bucket;
pub mod fdb;
pub(crate) mod frame;
pub(crate) mod loops;
pub(crate) mod multicast;
pub(crate) mod rates;
pub(crate) mod table;
pub(crate) mod tag;
pub mod vlan;
