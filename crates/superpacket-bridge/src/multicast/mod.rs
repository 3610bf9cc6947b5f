//! IGMP and MLD snooping: what is for a group leaves only by ports that have asked for it, and by
//! those that lead to routers (RFC 4541), as Linux's bridge does it.
//!
//! The bridge asks nobody itself. Where no router or other switch asks who is in which group, what
//! is for a group goes to all.

mod groups;
pub(crate) mod message;

pub(crate) use groups::PortSet;

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use superpacket::super_packet::SuperPacket;
use superpacket::wire::IpVersion;
use superpacket_port::Buffer;

use crate::frame::{ETHERNET, Head, network_offset};
use groups::{Groups, Member};
use message::{Heard, Record, is_message, read};

/// Bytes that say what a packet for a group is: link header and tags, IP header, the first bytes of
/// an extension header.
const ENOUGH: usize = 80;

/// What has been heard of groups, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Snooping {
    groups: RwLock<Groups>,
}

/// Who is given a packet for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Given {
    /// All.
    All,
    /// All, although it is a message that makes no sense.
    AllOfMalformed,
    /// These.
    Ports(PortSet),
}

/// The port that a message came by, and who hears it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker {
    port: u16,
    /// Isolated ports do not hear it.
    is_isolated: bool,
    /// Its hardware address is that of the group that it is sent to: hosts do not hear it by
    /// another.
    is_heard: bool,
}

impl Speaker {
    /// Returns what speaks at a port.
    pub(crate) const fn new(port: u16, is_isolated: bool) -> Speaker {
        Speaker { port, is_isolated, is_heard: true }
    }
}

/// Returns whether a frame is sent to the hardware address of the group in its IP header (RFC 1112,
/// section 6.4; RFC 2464, section 7).
fn is_mapped(frame: &[u8], ip: &[u8]) -> bool {
    let destination = frame.get(..6);
    match ip.first().map_or(0, |first| first >> 4) {
        4 => ip
            .get(17..20)
            .is_some_and(|low| destination == Some(&[1, 0, 0x5e, low[0] & 0x7f, low[1], low[2]])),
        6 => ip
            .get(36..40)
            .is_some_and(|low| destination == Some(&[0x33, 0x33, low[0], low[1], low[2], low[3]])),
        _ => false,
    }
}

impl From<Option<PortSet>> for Given {
    fn from(ports: Option<PortSet>) -> Self {
        ports.map_or(Given::All, Given::Ports)
    }
}

impl Snooping {
    fn groups(&self) -> RwLockReadGuard<'_, Groups> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Groups> {
        self.groups.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a packet for many that a port has received in a VLAN, at this time in
    /// nanoseconds; says who is given it.
    pub(crate) fn listen(
        &self,
        from: Speaker,
        vlan: u16,
        packet: &SuperPacket<'_, Buffer>,
        now: u64,
    ) -> Given {
        let head = Head::new(packet, ENOUGH);
        let bytes = head.bytes(packet);
        let network = network_offset(bytes, &packet.metadata);
        // What is behind other headers, tags of other kinds among them, is for all.
        if network != 0
            && (network != ETHERNET
                || !matches!(bytes.get(network - 2..network), Some([0x08, 0x00] | [0x86, 0xdd])))
        {
            return Given::All;
        }
        let Some(ip) = bytes.get(network..) else { return Given::All };
        let from = Speaker { is_heard: network == 0 || is_mapped(bytes, ip), ..from };
        if is_message(ip) && bytes.len() < packet.length() {
            let whole: Vec<u8> = packet.slices().flatten().copied().collect();
            return self.hear(from, vlan, read(whole.get(network..).unwrap_or(&[])), now);
        }
        self.hear(from, vlan, read(ip), now)
    }

    fn hear(
        &self,
        Speaker { port: from, is_isolated, is_heard }: Speaker,
        vlan: u16,
        heard: Heard<'_>,
        now: u64,
    ) -> Given {
        match heard {
            Heard::ForAll => Given::All,
            Heard::Malformed => Given::AllOfMalformed,
            Heard::ForGroup(group) => self.groups().given(vlan, group, now).into(),
            Heard::Join(group) => {
                let mut groups = self.change();
                groups.record(from, vlan, Record::Join(group), now);
                let version = if group.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
                groups.routers(vlan, version, now).into()
            }
            Heard::Leave(group) => {
                self.change().record(from, vlan, Record::Leave(group), now);
                Given::All
            }
            Heard::Report(records) => {
                let mut groups = self.change();
                records.for_each(|record| groups.record(from, vlan, record, now));
                Given::All
            }
            // What hosts do not hear they cannot answer.
            Heard::Query(_) if !is_heard => Given::AllOfMalformed,
            Heard::Query(query) => {
                self.change().query(from, is_isolated, vlan, &query, now);
                Given::All
            }
            Heard::Hello(version) => {
                self.change().hello(from, vlan, version, now);
                Given::All
            }
        }
    }

    /// Forgets what holds no longer, once a second at most.
    pub(crate) fn expire(&self, now: u64) {
        self.change().expire(now);
    }

    /// Forgets what was heard by a port.
    pub(crate) fn forget(&self, port: u16) {
        self.change().forget(port);
    }

    /// The ports in groups, in order of VLAN and group: (VLAN, group, port, how long it holds).
    pub(crate) fn members(&self, now: u64) -> Vec<(u16, IpAddr, u16, Duration)> {
        self.groups()
            .members(now)
            .into_iter()
            .map(|Member { vlan, group, port, left }| (vlan, group, port, left))
            .collect()
    }

    /// The ports that lead to routers, and how long that holds.
    pub(crate) fn router_ports(&self, now: u64) -> Vec<(u16, Duration)> {
        self.groups().router_ports(now)
    }

    /// Does somebody ask who is in which group, over IPv4 and over IPv6, in some VLAN?
    pub(crate) fn is_asked(&self, now: u64) -> [bool; 2] {
        self.groups().is_asked(now)
    }
}
