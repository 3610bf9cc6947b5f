//! `superpacket rps`: shows and sets the CPUs to which a bridge's ports steer their packets.

use clap::Args;
use serde_json::json;
use superpacket_bridge::report::{PortRps, SteeringReport};
use superpacket_bridge::settings::{InPlace, PortChange};
use superpacket_daemon::control::RpsChange;

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::report::{grouped, printable, show, table};

/// The arguments of `superpacket rps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RpsArguments {
    /// Only this port, by its name, or by its port string if it has none (packet:eth0)
    pub(crate) port: Option<String>,
    /// Only this receive queue, counted from 0, or all queues
    #[arg(value_name = "QUEUE|all")]
    pub(crate) queue: Option<String>,
    /// CPUs to steer to: a hexadecimal mask, or auto
    #[arg(value_name = "MASK|auto")]
    pub(crate) mask: Option<String>,
    /// CPUs to steer to: a list, as in 0-3,8
    #[arg(long, value_name = "LIST", requires = "port")]
    pub(crate) cpu_list: Option<String>,
    /// Number of flows that RFS distinguishes per receive queue (rps_flow_cnt); 0: no RFS
    #[arg(long, value_name = "N", requires = "port")]
    pub(crate) flow_count: Option<u64>,
    /// When to process packets on the receiving CPU despite the mask: auto, while the receiving
    /// thread has time for all of them (the default); N, while fewer than N packets arrive per
    /// second; 0, never, as in the kernel
    #[arg(long, value_name = "N|auto", requires = "port")]
    pub(crate) in_place_below: Option<InPlace>,
    /// Set a value that holds for all ports
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Parses `netdev_max_backlog=3000`. Hyphens in the name are accepted as in the configuration file.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.replace('-', "_"), value.to_owned()))
}

/// Shows the steering, or changes it and shows the result.
pub(crate) fn run(arguments: &RpsArguments) -> Result<(), Failure> {
    let (queue, change) = arguments.requested_change()?;
    let mut client = connect(&arguments.connection)?;
    let mut ports = Vec::new();
    if let Some(port) = &arguments.port {
        for change in &change {
            ports = vec![client.set_rps(port, queue, change)?];
        }
        if let Some(when) = arguments.in_place_below {
            client.set_port(port, &PortChange::setting("in_place_below", when))?;
            ports.iter_mut().for_each(|port| port.in_place_below = when);
        }
    }
    for (name, value) in &arguments.set {
        client.set_steering(name, value.as_str())?;
    }
    if ports.is_empty() {
        ports = client.rps(arguments.port.as_deref())?;
    }
    if let Some(queue) = queue {
        for port in &mut ports {
            let queues = port.queues.len();
            port.queues.retain(|report| report.queue == queue);
            if port.queues.is_empty() {
                let says = format!(
                    "{} has no receive queue {queue}: it has {queues}, numbered from 0",
                    printable(&port.port)
                );
                return Err(Failure::Usage(format!(
                    "{says} (a mask for all queues: superpacket rps PORT all MASK)"
                )));
            }
        }
    }
    let steering = client.steering()?;
    Ok(show(arguments.json, &json!({ "ports": ports, "steering": steering }), || {
        text(&ports, &steering)
    })?)
}

impl RpsArguments {
    /// Returns the queue (`None` for all) and the changes that the arguments request for it.
    fn requested_change(&self) -> Result<(Option<u16>, Vec<RpsChange>), Failure> {
        let usage = |says: String| Err(Failure::Usage(says));
        let (queue, mask) = match (self.queue.as_deref(), self.mask.as_deref()) {
            (Some("auto"), None) => (None, Some("auto")),
            (queue, mask) => (queue, mask),
        };
        let queue = match queue.filter(|queue| *queue != "all") {
            None => None,
            Some(text) => match text.parse() {
                Ok(queue) => Some(queue),
                Err(_) => {
                    return usage(format!(
                        "{text:?} is no receive queue: write its number, or all; then the mask"
                    ));
                }
            },
        };
        // The mask comes first: if the bridge refuses it, nothing has changed.
        let mut changes = Vec::new();
        match (mask, &self.cpu_list) {
            (Some(_), Some(_)) => return usage("either MASK or --cpu-list".into()),
            (Some("auto"), None) => changes.push(RpsChange::Auto),
            (Some(mask), None) => changes.push(RpsChange::Mask(mask.to_owned())),
            (None, Some(list)) => changes.push(RpsChange::CpuList(list.clone())),
            (None, None) => {}
        }
        changes.extend(self.flow_count.map(RpsChange::FlowCount));
        if queue.is_some() && self.in_place_below.is_some() {
            return usage("--in-place-below holds for all queues of a port: name none".into());
        }
        Ok((queue, changes))
    }
}

/// Renders the steering of the ports, the workers and the settings.
fn text(ports: &[PortRps], steering: &SteeringReport) -> String {
    let mut text = String::new();
    for port in ports {
        text.push_str(&format!("{}:\n", printable(&port.port)));
        let rows = port.queues.iter().map(|queue| {
            let effective = match queue.effective_list.as_str() {
                "" => "off".to_owned(),
                list => format!("CPUs {}", printable(list)),
            };
            let now = match (queue.effective_list.is_empty(), queue.in_place) {
                (true, _) => "-",
                (false, true) => "in place",
                (false, false) => "steered",
            };
            [
                queue.queue.to_string(),
                printable(&queue.rps_cpus),
                effective,
                now.to_owned(),
                queue.rps_flow_cnt.to_string(),
            ]
        });
        text.push_str(&table(["queue", "rps_cpus", "in force", "now", "rps_flow_cnt"], rows));
        for queue in &port.queues {
            for cpu in &queue.dropped {
                text.push_str(&format!(
                    "  queue {}: no worker on CPU {}: it is {}\n",
                    queue.queue,
                    cpu.cpu,
                    printable(&cpu.reason)
                ));
            }
        }
        if port.queues.iter().any(|queue| !queue.effective_list.is_empty()) {
            text.push_str(&match port.in_place_below {
                InPlace::Automatic => {
                    "  in place as long as the receiving thread has time (--in-place-below auto)\n"
                        .to_owned()
                }
                InPlace::NEVER => "  always steered (--in-place-below 0)\n".to_owned(),
                InPlace::Below(rate) => format!(
                    "  in place below {} packets a second (--in-place-below {rate})\n",
                    grouped(rate)
                ),
            });
        }
        if let Some(why) = &port.why {
            text.push_str(&format!("  {}\n", printable(why)));
        }
        text.push('\n');
    }
    let rows = steering.workers.iter().map(|worker| {
        let counts = [worker.processed, worker.turns, worker.wake_ups, worker.panics].map(grouped);
        let [processed, turns, wake_ups, panics] = counts;
        [worker.cpu.to_string(), printable(&worker.state), processed, turns, wake_ups, panics]
    });
    text.push_str(&table(
        ["worker on CPU", "state", "processed", "turns", "wake-ups", "panics"],
        rows,
    ));
    text.push_str(&format!("\nUsable CPUs: {}\n", printable(&steering.usable_cpus)));
    for (name, value) in &steering.settings {
        text.push_str(&format!("{}: {}\n", printable(name), printable(&value.to_string())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use superpacket_bridge::report::{DroppedCpu, QueueRps, WorkerReport};

    fn requested_change(arguments: &[&str]) -> Result<(Option<u16>, Vec<RpsChange>), String> {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            rps: RpsArguments,
        }
        let parsed = Alone::try_parse_from([&["rps"], arguments].concat())
            .map_err(|error| error.to_string())?;
        parsed.rps.requested_change().map_err(|error| error.to_string())
    }

    #[test]
    fn masks_are_for_a_queue_or_for_all() {
        let mask = |text: &str| vec![RpsChange::Mask(text.into())];
        for (arguments, expected) in [
            (&[][..], (None, vec![])),
            (&["p"], (None, vec![])),
            (&["p", "1"], (Some(1), vec![])),
            (&["p", "0", "3"], (Some(0), mask("3"))),
            (&["p", "all", "1,,5"], (None, mask("1,,5"))),
            (&["p", "all", ""], (None, mask(""))),
            (&["p", "auto"], (None, vec![RpsChange::Auto])),
            (&["p", "2", "auto"], (Some(2), vec![RpsChange::Auto])),
            (&["p", "--cpu-list", "0-3,8"], (None, vec![RpsChange::CpuList("0-3,8".into())])),
            (&["p", "1", "--flow-count", "64"], (Some(1), vec![RpsChange::FlowCount(64)])),
            (&["p", "--in-place-below", "1000"], (None, vec![])),
            (&["p", "--in-place-below", "0"], (None, vec![])),
            (&["p", "--in-place-below", "auto"], (None, vec![])),
        ] {
            assert_eq!(requested_change(arguments), Ok(expected), "{arguments:?}");
        }
        for (arguments, says) in [
            (&["p", "ff"][..], "\"ff\" is no receive queue"),
            (&["p", "0", "3", "--cpu-list", "1"], "either MASK or --cpu-list"),
            (&["--cpu-list", "1"], "required"),
            (&["p", "1", "--in-place-below", "9"], "all queues"),
            (
                &["p", "--in-place-below", "never"],
                "it is \"auto\", or a number of packets a second (0: always steer), not \"never\"",
            ),
            (&["--set", "dev_weight"], "NAME=VALUE"),
        ] {
            let error = requested_change(arguments).expect_err(says);
            assert!(error.contains(says), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn dropped_cpus_are_shown_with_the_reason() {
        let queue = QueueRps {
            queue: 0,
            rps_cpus: "f".into(),
            effective: "3".into(),
            effective_list: "0-1".into(),
            dropped: vec![DroppedCpu { cpu: 3, reason: "offline".into() }],
            rps_flow_cnt: 0,
            in_place: true,
        };
        let off =
            QueueRps { queue: 1, in_place: false, effective_list: String::new(), ..queue.clone() };
        let port = PortRps {
            port: "tap:t".into(),
            queues: vec![queue, off],
            in_place_below: InPlace::Below(5000),
            why: None,
        };
        let worker = WorkerReport {
            cpu: 1,
            state: "running".into(),
            processed: 1234,
            ..WorkerReport::default()
        };
        let steering = SteeringReport {
            workers: vec![worker],
            usable_cpus: "0-1".into(),
            ..SteeringReport::default()
        };
        let says = |in_place_below: InPlace| {
            text(&[PortRps { in_place_below, ..port.clone() }], &steering)
        };
        assert!(
            says(InPlace::Automatic).contains("as long as the receiving thread has time"),
            "{}",
            says(InPlace::Automatic)
        );
        assert!(says(InPlace::NEVER).contains("always steered"), "{}", says(InPlace::NEVER));
        let text = text(std::slice::from_ref(&port), &steering);
        let rows = |now: &str| text.lines().filter(|line| line.contains(now)).count();
        assert_eq!((rows("  in place  "), rows("  off  ")), (1, 1), "{text}");
        for says in [
            "tap:t:\n",
            "CPUs 0-1",
            "no worker on CPU 3: it is offline",
            "below 5,000 packets",
            "1,234",
            "Usable CPUs: 0-1",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }
}
