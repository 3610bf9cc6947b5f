//! `superpacket ports` and `superpacket port`: a bridge's ports at a glance, and those that come
//! and go.

use superpacket_bridge::report::PortReport;

use super::arguments::{PortAction, PortChange, Ports};
use super::connect;
use crate::failure::Failure;
use crate::report::{print, print_json, printable, table};

/// Shows all ports, or one.
pub(crate) fn run(arguments: &Ports) -> Result<(), Failure> {
    let ports = connect(&arguments.connection)?.ports(arguments.port.as_deref())?;
    if arguments.json {
        print_json(&ports)?;
    } else {
        print(&text(&ports), false)?;
    }
    Ok(())
}

/// Adds or removes a port.
pub(crate) fn change(arguments: &PortChange) -> Result<(), Failure> {
    let mut client = connect(&arguments.connection)?;
    let report = match arguments.action {
        PortAction::Add => client.add_port(&arguments.port)?,
        PortAction::Del => client.remove_port(&arguments.port)?,
    };
    if arguments.json {
        print_json(&report)?;
    }
    Ok(())
}

fn text(ports: &[PortReport]) -> String {
    let rows = ports.iter().map(|port| {
        [
            printable(&port.port),
            printable(&port.state),
            if port.mtu == 0 { "-".to_owned() } else { port.mtu.to_string() },
            port.hardware_address.as_deref().map_or("-".to_owned(), printable),
            port.queues.to_string(),
            port.addresses.to_string(),
            port.reopened.to_string(),
        ]
    });
    let mut text = table(["port", "state", "mtu", "hardware address", "queues", "learned", "reopened"], rows);
    for port in ports {
        if let Some(error) = &port.error {
            text.push_str(&format!("\n  {}: {}\n", printable(&port.port), printable(error)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_gone_says_why() {
        let port = PortReport {
            port: "packet:eth0".into(),
            state: "gone".into(),
            error: Some("there is no such interface".into()),
            mtu: 0,
            hardware_address: None,
            queues: 1,
            reopened: 3,
            addresses: 0,
            limits: Default::default(),
            too_big: "drop".into(),
            aggregation: Default::default(),
            forwarding: Default::default(),
        };
        let text = text(&[port]);
        assert!(text.lines().any(|line| line.split_whitespace().eq(["packet:eth0", "gone", "-", "-", "1", "0", "3"])), "{text}");
        assert!(text.ends_with("\n  packet:eth0: there is no such interface\n"), "{text}");
    }
}
