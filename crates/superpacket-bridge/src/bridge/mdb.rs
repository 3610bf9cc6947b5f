//! Lists the multicast group memberships for users of the bridge.

use super::{Bridge, lock};
use crate::report::{MdbEntry, MdbReport, MdbRouter};

impl Bridge {
    /// Returns the members of each IP multicast group, and the ports that lead to multicast
    /// routers, as multicast snooping has learned them.
    pub fn mdb(&self) -> MdbReport {
        let context = &self.inner.context;
        let Some(snooping) = &context.snooping else { return MdbReport::default() };
        let now = context.start.elapsed().as_nanos() as u64;
        let filtering = lock(&self.inner.settings).vlan_filtering;
        // If a port was removed meanwhile, it has no name.
        let member =
            |(vlan, group, port, left): (u16, std::net::IpAddr, u16, std::time::Duration)| {
                let port = self.inner.name(port)?;
                Some(MdbEntry {
                    port,
                    grp: group.to_string(),
                    vid: filtering.then_some(vlan),
                    state: "temp".into(),
                    timer: left.as_secs(),
                })
            };
        let router = |(port, left): (u16, std::time::Duration)| {
            Some(MdbRouter { port: self.inner.name(port)?, timer: left.as_secs() })
        };
        let [querier_ipv4, querier_ipv6] = snooping.has_querier(now);
        MdbReport {
            multicast_snooping: true,
            querier_ipv4,
            querier_ipv6,
            mdb: snooping.members(now).into_iter().filter_map(member).collect(),
            router: snooping.router_ports(now).into_iter().filter_map(router).collect(),
        }
    }
}
