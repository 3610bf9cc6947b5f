//! IGMP and MLD snooping: a group is forwarded only to ports that have joined it and to ports with
//! routers (RFC 4541), as in Linux's bridge.
//!
//! The bridge sends no queries itself. If no router or other switch does, groups are flooded to all
//! ports.

mod groups;
pub(crate) mod message;

pub(crate) use groups::PortSet;

use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use superpacket::super_packet::SuperPacket;
use superpacket::wire::IpVersion;
use superpacket_port::Buffer;

use crate::switch::frame::{ETHERNET, PacketHead, network_offset};
use groups::{Groups, Member};
use message::{GroupMessage, GroupRecord, is_message, read};

/// Number of first bytes that suffice to find the meaning of a multicast packet: link header and
/// tags, IP header, and the start of an extension header.
const ENOUGH: usize = 80;

/// The multicast group members and routers that were learned, shared by all threads of a bridge.
#[derive(Debug, Default)]
pub(crate) struct Snooping {
    groups: RwLock<Groups>,
}

/// The ports that receive a multicast packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Recipients {
    /// The packet is flooded to all ports.
    All,
    /// The packet is an invalid IGMP or MLD message, which is flooded to all ports.
    AllMalformed,
    /// The packet is sent to these ports only.
    Ports(PortSet),
}

/// The port that received a multicast message, and properties that decide which other hosts receive
/// the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageSource {
    port: u16,
    /// Whether the port has the flag `isolated`, so that other isolated ports do not receive the
    /// message.
    is_isolated: bool,
    /// Whether the frame's destination hardware address is that of the group in the IP header.
    /// Hosts ignore a message with any other.
    is_heard: bool,
}

impl MessageSource {
    /// Returns the source of messages that this port receives.
    pub(crate) const fn new(port: u16, is_isolated: bool) -> MessageSource {
        MessageSource { port, is_isolated, is_heard: true }
    }
}

/// Returns whether a frame's destination hardware address is that of the group in its IP header
/// (RFC 1112, section 6.4; RFC 2464, section 7).
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

impl From<Option<PortSet>> for Recipients {
    fn from(ports: Option<PortSet>) -> Self {
        ports.map_or(Recipients::All, Recipients::Ports)
    }
}

impl Snooping {
    fn groups(&self) -> RwLockReadGuard<'_, Groups> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Groups> {
        self.groups.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns from a multicast packet received by a port in a VLAN, at the time `now` in
    /// nanoseconds, and returns its recipients.
    pub(crate) fn listen(
        &self,
        from: MessageSource,
        vlan: u16,
        packet: &SuperPacket<'_, Buffer>,
        now: u64,
    ) -> Recipients {
        let head = PacketHead::new(packet, ENOUGH);
        let bytes = head.bytes(packet);
        let network = network_offset(bytes, &packet.metadata);
        // Packets behind other headers, such as tags of another type, go to all ports.
        if network != 0
            && (network != ETHERNET
                || !matches!(bytes.get(network - 2..network), Some([0x08, 0x00] | [0x86, 0xdd])))
        {
            return Recipients::All;
        }
        let Some(ip) = bytes.get(network..) else { return Recipients::All };
        let from = MessageSource { is_heard: network == 0 || is_mapped(bytes, ip), ..from };
        if is_message(ip) && bytes.len() < packet.length() {
            let whole: Vec<u8> = packet.slices().flatten().copied().collect();
            return self.hear(from, vlan, read(whole.get(network..).unwrap_or(&[])), now);
        }
        self.hear(from, vlan, read(ip), now)
    }

    fn hear(
        &self,
        MessageSource { port: from, is_isolated, is_heard }: MessageSource,
        vlan: u16,
        heard: GroupMessage<'_>,
        now: u64,
    ) -> Recipients {
        match heard {
            GroupMessage::ForAll => Recipients::All,
            GroupMessage::Malformed => Recipients::AllMalformed,
            GroupMessage::ForGroup(group) => self.groups().given(vlan, group, now).into(),
            GroupMessage::Join(group) => {
                let mut groups = self.change();
                groups.record(from, vlan, GroupRecord::Join(group), now);
                let version = if group.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
                groups.routers(vlan, version, now).into()
            }
            GroupMessage::Leave(group) => {
                self.change().record(from, vlan, GroupRecord::Leave(group), now);
                Recipients::All
            }
            GroupMessage::Report(records) => {
                let mut groups = self.change();
                records.for_each(|record| groups.record(from, vlan, record, now));
                Recipients::All
            }
            // Hosts cannot respond to a message that they do not receive.
            GroupMessage::Query(_) if !is_heard => Recipients::AllMalformed,
            GroupMessage::Query(query) => {
                self.change().query(from, is_isolated, vlan, &query, now);
                Recipients::All
            }
            GroupMessage::Hello(version) => {
                self.change().hello(from, vlan, version, now);
                Recipients::All
            }
        }
    }

    /// Removes expired memberships and routers, at most once per second.
    pub(crate) fn expire(&self, now: u64) {
        self.change().expire(now);
    }

    /// Removes the memberships and routers of a port.
    pub(crate) fn forget(&self, port: u16) {
        self.change().forget(port);
    }

    /// Returns the group memberships, sorted by VLAN and group: VLAN, group, port, and time until
    /// the membership expires.
    pub(crate) fn members(&self, now: u64) -> Vec<(u16, IpAddr, u16, Duration)> {
        self.groups()
            .members(now)
            .into_iter()
            .map(|Member { vlan, group, port, left }| (vlan, group, port, left))
            .collect()
    }

    /// Returns the ports that lead to multicast routers, each with the time until it expires.
    pub(crate) fn router_ports(&self, now: u64) -> Vec<(u16, Duration)> {
        self.groups().router_ports(now)
    }

    /// Returns whether there is a querier in any VLAN: first for IPv4, then for IPv6.
    pub(crate) fn has_querier(&self, now: u64) -> [bool; 2] {
        self.groups().has_querier(now)
    }
}
