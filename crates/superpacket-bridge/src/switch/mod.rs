//! The switch between the ports: to which of them a packet goes, as IEEE 802.1D and 802.1Q say, and
//! how much of it.
//!
//! ```text
//! frame      a packet's addresses, and where its network header is
//! table      learned and static addresses, each with its port; fdb is how they are listed
//! vlan       which VLANs a port is a member of; tag moves the tags to where that is looked for
//! multicast  which ports have joined a group (IGMP and MLD snooping)
//! loops      frames that come back
//! rates      rate and storm limits of a port; bucket applies them
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
