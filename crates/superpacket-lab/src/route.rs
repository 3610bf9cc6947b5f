//! Permanent neighbours and host routes of an interface (ip-neighbour(8), ip-route(8)).

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::error::LabError;
use crate::link::Link;

/// Metrics of a route that change how TCP behaves towards a neighbour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteMetrics {
    /// `window`: the largest window that TCP offers, in bytes; `None` for no limit but the receive
    /// buffer.
    pub window: Option<u32>,
    /// `quickack`: TCP acknowledges every segment at once.
    pub quick_acknowledgements: bool,
}

impl Link {
    /// Adds a permanent neighbour on this interface (`ip neigh replace ... nud permanent`), so that
    /// ARP and neighbour discovery send no requests for it.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_neighbour(&self, neighbour: IpAddr, mac: [u8; 6]) -> Result<(), LabError> {
        let mut message = NeighbourMessage::default();
        let (family, address) = match neighbour {
            IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
        };
        message.header.family = family;
        message.header.ifindex = self.index()?;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(address),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.request(
            &format!("neighbour {neighbour}"),
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .map(drop)
    }

    /// Creates or replaces the route to one neighbour on this interface.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_neighbour_route(
        &self,
        neighbour: IpAddr,
        metrics: RouteMetrics,
    ) -> Result<(), LabError> {
        let mut message = RouteMessage::default();
        let (family, length, address) = match neighbour {
            IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = length;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Link;
        message.header.kind = RouteType::Unicast;
        let mut values = vec![RouteMetric::QuickAck(u32::from(metrics.quick_acknowledgements))];
        values.extend(metrics.window.map(RouteMetric::Window));
        message.attributes = vec![
            RouteAttribute::Destination(address),
            RouteAttribute::Oif(self.index()?),
            RouteAttribute::Metrics(values),
        ];
        let what = format!("route to {neighbour} with {metrics:?}");
        self.request(&what, RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Context, available_or_skip};
    use crate::topology::TwoHosts;

    #[test]
    fn a_neighbour_is_known_without_being_asked() -> Result<(), LabError> {
        let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
        hosts.a.link.set_neighbour(hosts.b.ipv4, [2, 0, 0, 0, 0, 0x99])?;
        let table = hosts.a.host.run(|| {
            std::fs::read_to_string("/proc/thread-self/net/arp").context(|| "neighbours".into())
        })?;
        let line = table.lines().find(|line| line.starts_with("10.77.0.2 ")).expect("it is there");
        // Flags 0x6: complete and permanent.
        assert!(line.contains(" 0x6 ") && line.contains("02:00:00:00:00:99"), "{line}");
        Ok(())
    }

    #[test]
    fn a_neighbour_is_reached_by_its_own_route_and_nobody_else() -> Result<(), LabError> {
        let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
        let station = hosts.a;
        let metrics = RouteMetrics { window: Some(1 << 19), quick_acknowledgements: true };
        station.link.set_neighbour_route(IpAddr::from([10, 77, 0, 2]), metrics)?;
        station.link.set_neighbour_route(IpAddr::from([10, 77, 0, 2]), RouteMetrics::default())?;
        let routes = station.host.run(|| {
            std::fs::read_to_string("/proc/thread-self/net/route").context(|| "routes".into())
        })?;
        let routes: Vec<Vec<&str>> =
            routes.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
        // Destination and mask are hexadecimal, in memory order.
        let to = |destination: &str, mask: &str| {
            routes.iter().filter(|route| route[1] == destination && route[7] == mask).count()
        };
        let hexadecimal = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        assert_eq!(to(&hexadecimal([10, 77, 0, 2]), "FFFFFFFF"), 1, "{routes:?}");
        Ok(())
    }
}
