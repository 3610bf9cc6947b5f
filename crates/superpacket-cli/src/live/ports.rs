//! `superpacket ports`: an overview of a bridge's ports.

use superpacket_bridge::report::PortReport;

use super::connection::{PortQuery, connect};
use crate::failure::Failure;
use crate::report::{printable, show, table};

/// Shows all ports, or one.
pub(crate) fn run(arguments: &PortQuery) -> Result<(), Failure> {
    let ports = connect(&arguments.connection)?.ports(arguments.port.as_deref())?;
    Ok(show(arguments.json, &ports, || text(&ports))?)
}

fn text(ports: &[PortReport]) -> String {
    // If no port was given a name, the names are the port strings, and the column is left out.
    // Bridges of earlier versions do not send the string.
    let mut text = match ports.iter().all(|port| port.string.is_empty() || port.string == port.port)
    {
        true => table(
            ["port", "state", "mtu", "hardware address", "queues", "learned", "reopened"],
            ports.iter().map(|port| {
                let [state, mtu, address, queues, learned, reopened] = cells(port);
                [printable(&port.port), state, mtu, address, queues, learned, reopened]
            }),
        ),
        false => table(
            ["port", "device", "state", "mtu", "hardware address", "queues", "learned", "reopened"],
            ports.iter().map(|port| {
                let [state, mtu, address, queues, learned, reopened] = cells(port);
                let device = port.string.split('?').next().unwrap_or_default();
                [
                    printable(&port.port),
                    printable(device),
                    state,
                    mtu,
                    address,
                    queues,
                    learned,
                    reopened,
                ]
            }),
        ),
    };
    for port in ports {
        if let Some(error) = &port.error {
            text.push_str(&format!("\n  {}: {}\n", printable(&port.port), printable(error)));
        }
    }
    text
}

/// Returns the cells of a port's row after its name: state, MTU, address and counts.
fn cells(port: &PortReport) -> [String; 6] {
    [
        printable(&port.state),
        if port.mtu == 0 { "-".to_owned() } else { port.mtu.to_string() },
        port.hardware_address.as_deref().map_or("-".to_owned(), printable),
        port.queues.to_string(),
        port.addresses.to_string(),
        port.reopened.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> PortReport {
        PortReport {
            port: "packet:eth0".into(),
            string: "packet:eth0".into(),
            state: "gone".into(),
            error: Some("there is no such interface".into()),
            mtu: 0,
            hardware_address: None,
            queues: 1,
            reopened: 3,
            addresses: 0,
            settings: Default::default(),
        }
    }

    #[test]
    fn a_port_that_is_gone_says_why() {
        let text = text(&[report()]);
        assert!(
            text.lines().any(|line| line.split_whitespace().eq([
                "packet:eth0",
                "gone",
                "-",
                "-",
                "1",
                "0",
                "3"
            ])),
            "{text}"
        );
        assert!(text.ends_with("\n  packet:eth0: there is no such interface\n"), "{text}");
    }

    #[test]
    fn a_named_port_is_listed_with_its_device() {
        let named = PortReport {
            port: "left".into(),
            string: "packet:eth0?ring=4m&queues=2".into(),
            error: None,
            ..report()
        };
        let text = text(&[
            named,
            PortReport { port: "tap:b".into(), string: "tap:b".into(), error: None, ..report() },
        ]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|row: &Vec<_>| !row.is_empty())
            .collect();
        assert_eq!(rows[0][..3], ["port", "device", "state"], "{text}");
        assert_eq!(
            [&rows[1][..3], &rows[2][..3]],
            [["left", "packet:eth0", "gone"], ["tap:b", "tap:b", "gone"]],
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
