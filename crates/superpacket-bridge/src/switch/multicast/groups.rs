//! Multicast group members and router ports, each with an expiry time.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use superpacket::wire::IpVersion;

use super::message::{GroupRecord, Query, V1_RESPONSE};
use crate::settings::MAX_PORTS;

/// Time for which a membership lasts that is not reported again, as in Linux
/// (`mcast_membership_interval`).
pub(super) const MEMBERSHIP: u64 = seconds(260);
/// Time for which a querier or router counts as active after its last message, as in Linux
/// (`mcast_querier_interval`).
pub(super) const QUERIER: u64 = seconds(255);
/// Number of queries that a querier sends after a host has left a group, as in Linux
/// (`mcast_last_member_count`).
const LAST_MEMBER_COUNT: u64 = 2;
/// Interval between the queries after a host has left a group, as in Linux
/// (`mcast_last_member_interval`).
const LAST_MEMBER: u64 = seconds(1);

/// Shortest response time that is assumed for a general query: 100 ms, the unit of time in IGMP.
/// IGMPv3 and MLD queries can ask for immediate responses.
const MIN_RESPONSE: u64 = seconds(1) / 10;

/// Minimum time for which a membership lasts after a query for its group, so that a response
/// arrives in time.
const MIN_MEMBERSHIP: u64 = seconds(1);

/// Time for which hosts respond as in IGMPv1 after an IGMPv1 query. It is the robustness variable
/// times the query interval, plus a response interval, with Linux's values (RFC 3376, section
/// 8.12).
const V1_PRESENT: u64 = seconds(260);

/// Maximum number of groups that are recorded for a port. A port that joins more receives all
/// groups.
pub(super) const MAX_GROUPS: u32 = 1024;

/// Interval between scans for expired memberships and routers.
const EXPIRE: u64 = seconds(1);

const fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

/// A set of port numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortSet([u64; MAX_PORTS / 64]);

impl PortSet {
    /// Returns whether the port is in the set.
    #[inline]
    pub(crate) fn has(&self, port: u16) -> bool {
        self.0.get(usize::from(port) / 64).is_some_and(|word| word & 1 << (port % 64) != 0)
    }

    fn add(&mut self, port: u16) {
        if let Some(word) = self.0.get_mut(usize::from(port) / 64) {
            *word |= 1 << (port % 64);
        }
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let mut set = PortSet([0; MAX_PORTS / 64]);
        ports.into_iter().for_each(|port| set.add(port));
        set
    }
}

/// Port numbers, each with the time at which its entry expires.
type Ports = BTreeMap<u16, u64>;

/// The queriers and routers that are known in a VLAN for one IP version.
#[derive(Debug, Default)]
struct Routers {
    ports: Ports,
    /// Time until which a querier is known to be active.
    querier_until: u64,
    /// Time from which all members of groups are known, because all hosts had the chance to report.
    members_known_at: u64,
    /// The querier that won the election.
    querier: Option<Querier>,
    /// Time until which hosts may respond as slowly as in IGMPv1, because of an IGMPv1 query.
    igmpv1_until: u64,
}

/// The elected querier: of several, the one with the lowest address (RFC 2236, section 7; RFC 3810,
/// section 7.6.2).
#[derive(Clone, Copy, Debug)]
struct Querier {
    /// The querier's address. One without an address is elected only if there is no other (RFC
    /// 4541, section 2.1.1).
    source: Option<IpAddr>,
    port: u16,
    /// Time until which only a querier with a lower address can replace it.
    until: u64,
}

impl Routers {
    /// Updates the election of the querier after a port has received a general query.
    fn elect(&mut self, port: u16, source: Option<IpAddr>, now: u64) {
        let is_elected = match self.querier.filter(|querier| querier.until > now) {
            None => true,
            Some(querier) => match (source, querier.source) {
                (Some(source), Some(elected)) => source <= elected,
                (None, Some(_)) => false,
                (_, None) => true,
            },
        };
        if is_elected {
            self.querier = Some(Querier { source, port, until: now + QUERIER });
        }
    }

    /// Returns whether this sender is the elected querier. Only its queries may shorten
    /// memberships.
    fn is_querier(&self, port: u16, source: Option<IpAddr>, now: u64) -> bool {
        self.querier.is_some_and(|querier| {
            querier.until > now && querier.port == port && querier.source == source
        })
    }
}

/// All group members and multicast routers that were learned. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The member ports of each group, by VLAN and group address.
    members: HashMap<(u16, IpAddr), Ports>,
    /// For each port, the number of groups of which it is a member.
    held: HashMap<u16, u32>,
    /// The queriers and routers, by VLAN and IP version (true for IPv4). A querier in one VLAN says
    /// nothing about others.
    routers: HashMap<(u16, bool), Routers>,
    /// Time of the last scan for expired memberships and routers.
    expired: u64,
}

/// The membership of a port in a multicast group, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) vlan: u16,
    pub(super) group: IpAddr,
    pub(super) port: u16,
    pub(super) left: Duration,
}

/// Returns the key of the map of routers for a VLAN and IP version.
const fn key(vlan: u16, version: IpVersion) -> (u16, bool) {
    (vlan, matches!(version, IpVersion::V4))
}

fn version(group: IpAddr) -> IpVersion {
    if group.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
}

impl Groups {
    /// Returns the ports that receive packets of a group; `None` for all ports, because without a
    /// querier the members are unknown.
    pub(super) fn given(&self, vlan: u16, group: IpAddr, now: u64) -> Option<PortSet> {
        let mut ports = self.routers(vlan, version(group), now)?;
        let members = self.members.get(&(vlan, group)).into_iter().flatten();
        members.filter(|(_, until)| **until > now).for_each(|(port, _)| ports.add(*port));
        Some(ports)
    }

    /// Returns the ports that lead to multicast routers in a VLAN; `None` if there is no querier.
    pub(super) fn routers(&self, vlan: u16, version: IpVersion, now: u64) -> Option<PortSet> {
        let routers = self.routers.get(&key(vlan, version))?;
        if routers.querier_until <= now || routers.members_known_at > now {
            return None;
        }
        Some(
            routers
                .ports
                .iter()
                .filter(|(_, until)| **until > now)
                .map(|(port, _)| *port)
                .collect(),
        )
    }

    /// Handles a host's report that it joins or leaves a group.
    pub(super) fn record(&mut self, port: u16, vlan: u16, record: GroupRecord, now: u64) {
        match record {
            GroupRecord::Join(group) => self.join(port, vlan, group, now),
            GroupRecord::Leave(group) => self.leave(port, vlan, group, now),
        }
    }

    fn join(&mut self, port: u16, vlan: u16, group: IpAddr, now: u64) {
        let until = now + MEMBERSHIP;
        if let Some(known) =
            self.members.get_mut(&(vlan, group)).and_then(|ports| ports.get_mut(&port))
        {
            *known = until;
            return;
        }
        let held = self.held.entry(port).or_default();
        if *held >= MAX_GROUPS {
            self.routers.entry(key(vlan, version(group))).or_default().ports.insert(port, until);
            return;
        }
        *held += 1;
        self.members.entry((vlan, group)).or_default().insert(port, until);
    }

    /// Handles the message of a host that leaves a group. If there is a querier, it asks for
    /// remaining members, and the port stays a member until then. Otherwise the membership ends
    /// soon.
    fn leave(&mut self, port: u16, vlan: u16, group: IpAddr, now: u64) {
        if self
            .routers
            .get(&key(vlan, version(group)))
            .is_some_and(|routers| routers.querier_until > now)
        {
            return;
        }
        if let Some(until) =
            self.members.get_mut(&(vlan, group)).and_then(|ports| ports.get_mut(&port))
        {
            *until = (*until).min(now + LAST_MEMBER_COUNT * LAST_MEMBER);
        }
    }

    /// Handles a query. A query that an isolated port received does not reach other isolated ports,
    /// so it only shows that there may be a router.
    pub(super) fn query(
        &mut self,
        port: u16,
        is_isolated: bool,
        vlan: u16,
        query: &Query,
        now: u64,
    ) {
        let routers = self.routers.entry(key(vlan, query.version)).or_default();
        if query.is_v1 {
            routers.igmpv1_until = now + V1_PRESENT;
        }
        let mut response = (query.response.as_nanos() as u64).max(MIN_RESPONSE);
        if routers.igmpv1_until > now {
            response = response.max(V1_RESPONSE.as_nanos() as u64);
        }
        if let Some(group) = query.group {
            if is_isolated || !routers.is_querier(port, query.source, now) {
                return;
            }
            // Remaining members of the group respond within this time.
            let until = now + (LAST_MEMBER_COUNT * response).max(MIN_MEMBERSHIP);
            self.members
                .get_mut(&(vlan, group))
                .into_iter()
                .flatten()
                .for_each(|(_, known)| *known = (*known).min(until));
            return;
        }
        if !is_isolated {
            // After several queries, members are known when all hosts have had the time to answer
            // the first.
            let is_first = routers.querier_until <= now;
            routers.members_known_at = if is_first {
                now + response
            } else {
                routers.members_known_at.min(now + response)
            };
            routers.querier_until = now + QUERIER;
            routers.elect(port, query.source, now);
        }
        // A querier without an address does not forward packets, so it is not a router (RFC 4541,
        // section 2.1.1).
        if query.source.is_some() {
            self.hello(port, vlan, query.version, now);
        }
    }

    /// Records that a port leads to a multicast router, which has sent a hello.
    pub(super) fn hello(&mut self, port: u16, vlan: u16, version: IpVersion, now: u64) {
        let until =
            self.routers.entry(key(vlan, version)).or_default().ports.entry(port).or_default();
        *until = (*until).max(now + QUERIER);
    }

    /// Removes expired memberships and routers, at most once per [`EXPIRE`].
    pub(super) fn expire(&mut self, now: u64) {
        if now < self.expired + EXPIRE {
            return;
        }
        self.expired = now;
        self.retain(|_, until| until > now);
    }

    /// Removes the memberships and routers of a port.
    pub(super) fn forget(&mut self, port: u16) {
        self.retain(|known, _| known != port);
    }

    fn retain(&mut self, keep: impl Fn(u16, u64) -> bool) {
        let held = &mut self.held;
        self.members.retain(|_, ports| {
            ports.retain(|port, until| {
                let keeps = keep(*port, *until);
                if !keeps && let Some(held) = held.get_mut(port) {
                    *held -= 1;
                }
                keeps
            });
            !ports.is_empty()
        });
        held.retain(|_, held| *held != 0);
        let expired = self.expired;
        self.routers.retain(|_, routers| {
            routers.ports.retain(|port, until| keep(*port, *until));
            routers.querier = routers.querier.filter(|querier| keep(querier.port, querier.until));
            !routers.ports.is_empty() || routers.querier_until > expired
        });
    }

    /// Returns the memberships of all ports, sorted.
    pub(super) fn members(&self, now: u64) -> Vec<Member> {
        let each = self.members.iter().flat_map(|(&(vlan, group), ports)| {
            ports.iter().map(move |(&port, &until)| (vlan, group, port, until))
        });
        let members = each.filter(|(.., until)| *until > now);
        let left = |until: u64| Duration::from_nanos(until - now);
        let mut members: Vec<_> = members
            .map(|(vlan, group, port, until)| Member { vlan, group, port, left: left(until) })
            .collect();
        members.sort();
        members
    }

    /// Returns the ports that lead to multicast routers, each with the longest time until it
    /// expires in any VLAN and IP version.
    pub(super) fn router_ports(&self, now: u64) -> Vec<(u16, Duration)> {
        let mut ports = Ports::new();
        for (&port, &until) in self
            .routers
            .values()
            .flat_map(|routers| &routers.ports)
            .filter(|(_, until)| **until > now)
        {
            let known = ports.entry(port).or_default();
            *known = (*known).max(until);
        }
        ports.into_iter().map(|(port, until)| (port, Duration::from_nanos(until - now))).collect()
    }

    /// Returns whether there is a querier in any VLAN: first for IPv4, then for IPv6.
    pub(super) fn has_querier(&self, now: u64) -> [bool; 2] {
        let asked = |v4: bool| {
            self.routers
                .iter()
                .any(|((_, is_v4), routers)| *is_v4 == v4 && routers.querier_until > now)
        };
        [asked(true), asked(false)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 1, 2, 3));
    const SECOND: u64 = seconds(1);

    fn ports(set: Option<PortSet>) -> Option<Vec<u16>> {
        set.map(|set| (0..MAX_PORTS as u16).filter(|&port| set.has(port)).collect())
    }

    fn general(has_source: bool) -> Query {
        let source = has_source.then(|| [10, 0, 0, 9].into());
        Query {
            version: IpVersion::V4,
            group: None,
            response: Duration::from_secs(10),
            source,
            is_v1: false,
        }
    }

    /// Returns a query for one group with this response time.
    fn specific(response: Duration) -> Query {
        Query { group: Some(GROUP), response, ..general(true) }
    }

    /// Returns a state in which port 9 leads to a router that sent a query at time 0.
    fn asked() -> Groups {
        let mut groups = Groups::default();
        groups.query(9, false, 0, &general(true), 0);
        groups
    }

    #[test]
    fn a_group_is_restricted_to_members_and_routers_once_all_may_have_reported() {
        let mut groups = Groups::default();
        groups.record(1, 0, GroupRecord::Join(GROUP), 0);
        assert_eq!(groups.given(0, GROUP, 1), None, "nobody asks: others may be in it");
        groups.query(9, false, 0, &general(true), SECOND);
        assert_eq!(groups.given(0, GROUP, 10 * SECOND), None, "they may answer still");
        groups.record(70, 0, GroupRecord::Join(GROUP), 5 * SECOND);
        let now = 11 * SECOND;
        assert_eq!(ports(groups.given(0, GROUP, now)), Some(vec![1, 9, 70]));
        assert_eq!(groups.given(7, GROUP, now), None, "nobody asks in another VLAN");
        assert_eq!(
            ports(groups.given(0, "239.9.9.9".parse().expect("a group"), now)),
            Some(vec![9]),
            "nobody is in it"
        );
        assert_eq!(
            groups.given(0, "ff05::1".parse().expect("a group"), now),
            None,
            "nobody asks over IPv6"
        );
        // After another query all members are still known.
        groups.query(9, false, 0, &general(true), 125 * SECOND);
        assert_eq!(ports(groups.given(0, GROUP, 126 * SECOND)), Some(vec![1, 9, 70]));
    }

    #[test]
    fn memberships_and_routers_expire() {
        let mut groups = asked();
        groups.record(1, 0, GroupRecord::Join(GROUP), 0);
        groups.record(2, 0, GroupRecord::Join(GROUP), 30 * SECOND);
        groups.query(9, false, 0, &general(true), 200 * SECOND);
        assert_eq!(ports(groups.given(0, GROUP, 259 * SECOND)), Some(vec![1, 2, 9]));
        assert_eq!(ports(groups.given(0, GROUP, 260 * SECOND)), Some(vec![2, 9]));
        groups.expire(260 * SECOND);
        assert_eq!(
            (groups.members(260 * SECOND).len(), groups.held[&2], groups.held.get(&1)),
            (1, 1, None)
        );
        assert_eq!(groups.members(260 * SECOND)[0].left, Duration::from_secs(30));
        assert_eq!(groups.given(0, GROUP, 455 * SECOND), None, "whoever asked is gone");
        assert!(groups.router_ports(455 * SECOND).is_empty());
    }

    #[test]
    fn a_querier_without_an_address_is_no_router() {
        let mut groups = Groups::default();
        groups.query(9, false, 0, &general(false), 0);
        assert_eq!(ports(groups.given(0, GROUP, 11 * SECOND)), Some(vec![]));
        groups.hello(4, 0, IpVersion::V4, 11 * SECOND);
        assert_eq!(ports(groups.given(0, GROUP, 12 * SECOND)), Some(vec![4]));
    }

    #[test]
    fn an_immediate_response_has_a_minimum_time() {
        let at_once = Query { response: Duration::ZERO, ..general(true) };
        let mut groups = Groups::default();
        groups.query(9, false, 0, &at_once, 0);
        assert_eq!(groups.given(0, GROUP, MIN_RESPONSE - 1), None, "nobody can have been heard");
        assert!(groups.given(0, GROUP, MIN_RESPONSE).is_some());
        groups.record(1, 0, GroupRecord::Join(GROUP), SECOND);
        groups.query(9, false, 0, &specific(Duration::ZERO), SECOND);
        assert_eq!(ports(groups.given(0, GROUP, SECOND + MIN_MEMBERSHIP - 1)), Some(vec![1, 9]));
        assert_eq!(ports(groups.given(0, GROUP, SECOND + MIN_MEMBERSHIP)), Some(vec![9]));
    }

    #[test]
    fn a_long_response_time_delays_nothing() {
        let mut groups = Groups::default();
        groups.query(
            9,
            false,
            0,
            &Query { response: Duration::from_secs(3_174), ..general(true) },
            0,
        );
        groups.query(8, false, 0, &general(true), 0);
        assert_eq!(groups.given(0, GROUP, 10 * SECOND - 1), None);
        assert_eq!(ports(groups.given(0, GROUP, 10 * SECOND)), Some(vec![8, 9]));
    }

    #[test]
    fn routers_are_per_vlan_and_expire() {
        let mut groups = asked();
        (1..=4_094).for_each(|vlan| groups.hello(4, vlan, IpVersion::V6, 0));
        let now = 11 * SECOND;
        assert_eq!(ports(groups.given(0, GROUP, now)), Some(vec![9]));
        assert_eq!(groups.given(20, GROUP, now), None);
        assert_eq!(
            (groups.has_querier(now), groups.routers.len(), groups.router_ports(now).len()),
            ([true, false], 4_095, 2)
        );
        groups.expire(QUERIER);
        assert_eq!((groups.has_querier(QUERIER), groups.routers.len()), ([false, false], 0));
    }

    #[test]
    fn the_last_member_is_removed_when_it_does_not_respond() {
        let mut groups = asked();
        let now = 20 * SECOND;
        [1, 2].into_iter().for_each(|port| groups.record(port, 0, GroupRecord::Join(GROUP), now));
        groups.record(1, 0, GroupRecord::Leave(GROUP), now);
        assert_eq!(
            ports(groups.given(0, GROUP, now + 100 * SECOND)),
            Some(vec![1, 2, 9]),
            "others there will be asked"
        );
        groups.query(9, false, 0, &specific(Duration::from_secs(1)), now);
        groups.record(2, 0, GroupRecord::Join(GROUP), now + SECOND);
        assert_eq!(ports(groups.given(0, GROUP, now + 2 * SECOND - 1)), Some(vec![1, 2, 9]));
        assert_eq!(ports(groups.given(0, GROUP, now + 2 * SECOND)), Some(vec![2, 9]));
        // If there is no querier, a host's leave message takes effect at once.
        let mut groups = Groups::default();
        groups.record(1, 0, GroupRecord::Join(GROUP), 0);
        groups.record(1, 0, GroupRecord::Leave(GROUP), 0);
        assert_eq!(
            (groups.members(2 * SECOND - 1).len(), groups.members(2 * SECOND).len()),
            (1, 0)
        );
    }

    /// Returns how long the membership of port 1 lasts after these queries, the last at time 0.
    fn left(queries: &[(u16, bool, Query)]) -> Duration {
        let mut groups = Groups::default();
        groups.record(1, 0, GroupRecord::Join(GROUP), 0);
        queries
            .iter()
            .for_each(|(port, is_isolated, query)| groups.query(*port, *is_isolated, 0, query, 0));
        groups.members(0)[0].left
    }

    #[test]
    fn only_the_elected_querier_shortens_memberships() {
        let (whole, soon) = (Duration::from_nanos(MEMBERSHIP), Duration::from_secs(2));
        let of = |last: u8, query: Query| Query { source: Some([10, 0, 0, last].into()), ..query };
        let second = specific(Duration::from_secs(1));
        let elected = (9, false, general(true));
        assert_eq!(left(&[(9, false, second)]), whole, "it has not been elected");
        assert_eq!(left(&[elected, (9, false, second)]), soon);
        assert_eq!(
            left(&[elected, (5, false, second)]),
            whole,
            "with its address, by another port"
        );
        assert_eq!(
            left(&[elected, (9, false, of(8, second))]),
            whole,
            "by its port, with another address"
        );
        // The querier with the lowest address wins. One without an address wins only if it is
        // alone.
        let other = |last| (5, false, of(last, general(true)));
        assert_eq!(left(&[elected, other(10), (5, false, of(10, second))]), whole);
        assert_eq!(left(&[elected, other(10), (9, false, second)]), soon);
        assert_eq!(left(&[elected, other(8), (5, false, of(8, second))]), soon);
        assert_eq!(left(&[elected, other(8), (9, false, second)]), whole);
        let nameless = |query: Query| (5, false, Query { source: None, ..query });
        assert_eq!(left(&[elected, nameless(general(false)), nameless(second)]), whole);
        assert_eq!(left(&[nameless(general(false)), nameless(second)]), soon);
        assert_eq!(left(&[nameless(general(false)), elected, (9, false, second)]), soon);
        // Isolated members do not receive the query of an isolated port.
        assert_eq!(left(&[(9, true, general(true)), (9, true, second)]), whole);
        assert_eq!(left(&[elected, (9, true, second)]), whole);
        // MLD behaves in the same way.
        let group: IpAddr = "ff05::7".parse().expect("a group");
        let ask = |last: u8, group| {
            let source = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(last)]);
            Query {
                version: IpVersion::V6,
                group,
                response: Duration::ZERO,
                source: Some(source),
                is_v1: false,
            }
        };
        let mut groups = Groups::default();
        groups.record(1, 0, GroupRecord::Join(group), 0);
        groups.query(9, false, 0, &ask(9, None), 0);
        groups.query(5, false, 0, &ask(10, None), 0);
        groups.query(5, false, 0, &ask(10, Some(group)), 0);
        assert_eq!(groups.members(0)[0].left, whole);
        groups.query(9, false, 0, &ask(9, Some(group)), 0);
        assert_eq!(groups.members(0)[0].left, Duration::from_secs(1), "and never below a second");
    }

    #[test]
    fn a_new_querier_is_elected_after_silence_or_port_removal() {
        let low = Query { source: Some([10, 0, 0, 1].into()), ..general(true) };
        let left = |when: u64, change: fn(&mut Groups)| {
            let mut groups = Groups::default();
            groups.query(4, false, 0, &low, 0);
            change(&mut groups);
            groups.query(9, false, 0, &general(true), when);
            groups.record(1, 0, GroupRecord::Join(GROUP), when);
            groups.query(9, false, 0, &specific(Duration::from_secs(1)), when);
            groups.members(when)[0].left.as_secs()
        };
        assert_eq!(left(QUERIER - 1, |_| ()), 260);
        assert_eq!(left(QUERIER, |_| ()), 2);
        assert_eq!(left(SECOND, |groups| groups.forget(4)), 2);
    }

    #[test]
    fn after_an_igmpv1_query_hosts_have_ten_seconds_to_respond() {
        let first = Query { is_v1: true, ..general(true) };
        // Any IGMPv1 querier has this effect, elected or not, at an isolated port or not.
        for (port, is_isolated) in [(9, false), (5, false), (5, true)] {
            let mut groups = asked();
            groups.query(
                port,
                is_isolated,
                0,
                &Query { source: Some([10, 0, 0, 99].into()), ..first },
                0,
            );
            groups.query(9, false, 0, &general(true), 0);
            let now = 20 * SECOND;
            groups.record(1, 0, GroupRecord::Join(GROUP), now);
            for tenth in 0..100 {
                groups.query(
                    9,
                    false,
                    0,
                    &specific(Duration::from_millis(100)),
                    now + tenth * SECOND / 10,
                );
                assert!(
                    groups
                        .given(0, GROUP, now + tenth * SECOND / 10)
                        .is_some_and(|ports| ports.has(1)),
                    "{port} {tenth}"
                );
            }
            groups.record(1, 0, GroupRecord::Join(GROUP), now + 10 * SECOND);
            assert_eq!(groups.members(now + 10 * SECOND)[0].left.as_secs(), 260);
            // The time for which hosts respond as in IGMPv1 is over.
            let now = V1_PRESENT;
            groups.query(9, false, 0, &general(true), now);
            groups.query(9, false, 0, &specific(Duration::from_millis(100)), now);
            assert_eq!(groups.members(now)[0].left.as_secs(), 1);
        }
        // Groups are also not restricted before all members may have responded.
        let mut groups = Groups::default();
        groups.query(9, false, 0, &first, 0);
        groups.query(
            9,
            false,
            0,
            &Query { response: Duration::from_millis(100), ..general(true) },
            0,
        );
        assert_eq!(groups.given(0, GROUP, 10 * SECOND - 1), None);
        assert!(groups.given(0, GROUP, 10 * SECOND).is_some());
    }

    #[test]
    fn a_port_with_too_many_groups_receives_all_and_affects_no_other() {
        let mut groups = asked();
        for number in 0..MAX_GROUPS + 10 {
            let group = IpAddr::from((0xef00_0000 + number).to_be_bytes());
            groups.record(1, 0, GroupRecord::Join(group), 20 * SECOND);
        }
        assert_eq!(groups.members.len(), MAX_GROUPS as usize);
        groups.record(2, 0, GroupRecord::Join(GROUP), 20 * SECOND);
        assert_eq!(ports(groups.given(0, GROUP, 21 * SECOND)), Some(vec![1, 2, 9]));
        groups.forget(1);
        assert_eq!(
            (ports(groups.given(0, GROUP, 21 * SECOND)), groups.members.len()),
            (Some(vec![2, 9]), 1)
        );
    }
}
