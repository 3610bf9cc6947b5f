//! `superpacket vlan`: the VLANs of a bridge's ports, in the syntax of iproute2's `bridge vlan`.

use clap::{Args, ValueEnum};
use superpacket_bridge::vlan::{PortVlanReport, VlanProtocol, VlanRange, VlanReport};

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::report::{print_json, printable, show};

/// The actions of `superpacket vlan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VlanAction {
    /// Show VLANs: [dev PORT]
    #[value(alias = "list")]
    Show,
    /// Add a port to VLANs
    #[value(help = "Add a port to VLANs: dev PORT vid VID[-VID] [pvid] [untagged]")]
    Add,
    /// Remove a port from VLANs: dev PORT vid VID[-VID]
    #[value(alias = "delete")]
    Del,
}

/// The arguments of `superpacket vlan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VlanArguments {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<VlanAction>,
    /// Port and VLANs
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON, with the names of `bridge -json vlan`
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Shows the VLANs of the ports, or adds a port to VLANs or removes it.
pub(crate) fn run(arguments: &VlanArguments) -> Result<(), Failure> {
    let request = VlanRequest::read(arguments.action.unwrap_or(VlanAction::Show), &arguments.words)
        .map_err(Failure::Usage)?;
    let mut client = connect(&arguments.connection)?;
    let changed = match request {
        VlanRequest::Show(port) => {
            let report = client.vlans(port.as_deref())?;
            show(arguments.json, &report.ports, || text(&report))?;
            return Ok(());
        }
        VlanRequest::Add(port, range) => client.add_vlans(&port, &range)?,
        VlanRequest::Delete(port, range) => client.delete_vlans(&port, &range)?,
    };
    if arguments.json {
        print_json(&[changed])?;
    }
    Ok(())
}

/// A request to the bridge, parsed from the command line.
#[derive(Debug, PartialEq, Eq)]
enum VlanRequest {
    Show(Option<String>),
    Add(String, VlanRange),
    Delete(String, VlanRange),
}

impl VlanRequest {
    /// Parses the words after the action.
    fn read(action: VlanAction, words: &[String]) -> Result<VlanRequest, String> {
        let (name, form) = match action {
            VlanAction::Show => ("show", "[dev PORT]"),
            VlanAction::Add => ("add", "dev PORT vid VID[-VID] [pvid] [untagged]"),
            VlanAction::Del => ("del", "dev PORT vid VID[-VID]"),
        };
        let wrong = |problem: String| format!("vlan {name}: {problem}: write vlan {name} {form}");
        let mut words = words.iter().map(String::as_str);
        let (mut port, mut vlans, mut pvid, mut untagged) = (None, None, false, false);
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| wrong(format!("no value after {word:?}")));
            match word {
                "dev" if port.is_none() => port = Some(value()?.to_owned()),
                "vid" if vlans.is_none() && action != VlanAction::Show => vlans = Some(value()?),
                "pvid" if action == VlanAction::Add => pvid = true,
                "untagged" if action == VlanAction::Add => untagged = true,
                // Accepted for compatibility with iproute2: all ports belong to the bridge.
                "master" => {}
                _ => {
                    return Err(wrong(format!("{word:?} is not allowed here, or is repeated")));
                }
            }
        }
        if action == VlanAction::Show {
            return Ok(VlanRequest::Show(port));
        }
        let port = port.ok_or_else(|| wrong("no port".into()))?;
        let vlans: VlanRange =
            vlans.ok_or_else(|| wrong("no VLAN".into()))?.parse().map_err(&wrong)?;
        if vlans.pvid || vlans.untagged {
            return Err(wrong("pvid and untagged must be separate words".into()));
        }
        let range = VlanRange::new(vlans.first, vlans.last, pvid, untagged).map_err(&wrong)?;
        Ok(if action == VlanAction::Add {
            VlanRequest::Add(port, range)
        } else {
            VlanRequest::Delete(port, range)
        })
    }
}

/// Renders the table in the format of `bridge vlan`.
fn text(report: &VlanReport) -> String {
    const HEADING: &str = "port";
    let width = report
        .ports
        .iter()
        .map(|port| printable(&port.ifname).chars().count())
        .max()
        .unwrap_or_default()
        .max(HEADING.len());
    let mut text = format!("{HEADING:width$}  vlan-id\n");
    for PortVlanReport { ifname, vlans } in &report.ports {
        let mut name = printable(ifname);
        for entry in vlans {
            let end = entry.vlan_end.map(|end| format!("-{end}")).unwrap_or_default();
            let flags: String =
                entry.flags.iter().map(|flag| format!(" {}", printable(flag))).collect();
            text.push_str(&format!("{name:width$}  {}{end}{flags}\n", entry.vlan));
            name.clear();
        }
        if vlans.is_empty() {
            text.push_str(&format!("{name:width$}  none\n"));
        }
    }
    if report.vlan_protocol != VlanProtocol::default() {
        text.push_str(&format!("\nTags are of {}.\n", report.vlan_protocol));
    }
    if !report.vlan_filtering {
        text.push_str("\nVLAN filtering is off, so none of this is in force: superpacket bridge --vlan-filtering\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<VlanRequest, String> {
        let (action, words) = words.split_once(' ').unwrap_or((words, ""));
        let action = VlanAction::from_str(action, false)?;
        VlanRequest::read(action, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn it_accepts_the_syntax_of_iproute2() {
        let port = || "packet:left".to_owned();
        let range = |words: &str| words.parse::<VlanRange>().expect(words);
        for (words, expected) in [
            ("show", VlanRequest::Show(None)),
            ("show dev packet:left", VlanRequest::Show(Some(port()))),
            (
                "add dev packet:left vid 10 pvid untagged master",
                VlanRequest::Add(port(), range("10 pvid untagged")),
            ),
            ("add vid 10-20 dev packet:left", VlanRequest::Add(port(), range("10-20"))),
            ("del dev packet:left vid 10-20", VlanRequest::Delete(port(), range("10-20"))),
        ] {
            assert_eq!(read(words), Ok(expected), "{words}");
        }
        for (words, says) in [
            (
                "add vid 10",
                "vlan add: no port: write vlan add dev PORT vid VID[-VID] [pvid] [untagged]",
            ),
            ("add dev packet:left", "no VLAN"),
            ("add dev packet:left vid", "no value after \"vid\""),
            ("add dev packet:left vid ten", "\"ten\" is no VLAN"),
            ("add dev packet:left vid 4095", "a VLAN is 1 to 4094, not 4095"),
            ("add dev packet:left vid 10-20 pvid", "pvid is for one VLAN, not for 10-20"),
            ("add dev packet:left vid 10 tagged", "\"tagged\" is not allowed here"),
            ("del dev packet:left vid 10 pvid", "\"pvid\" is not allowed here"),
            ("show vid 10", "\"vid\" is not allowed here"),
        ] {
            let error = read(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
        let quoted = ["dev", "packet:left", "vid", "10 pvid"].map(str::to_owned);
        assert!(
            VlanRequest::read(VlanAction::Add, &quoted)
                .expect_err("two in one")
                .contains("separate words")
        );
    }

    #[test]
    fn it_reads_like_iproute2() {
        let port: PortVlanReport = serde_json::from_value(serde_json::json!({
            "ifname": "packet:left",
            "vlans": [{"vlan": 1, "flags": ["PVID", "Egress Untagged"]}, {"vlan": 10, "vlanEnd": 20}],
        }))
        .expect("reads");
        let none = PortVlanReport { ifname: "tap:b".into(), vlans: Vec::new() };
        let report = VlanReport {
            vlan_filtering: true,
            vlan_protocol: VlanProtocol::Dot1Q,
            ports: vec![port, none],
        };
        let expected = "port         vlan-id\npacket:left  1 PVID Egress Untagged\n             10-20\ntap:b        none\n";
        assert_eq!(text(&report), expected);
        let provider = VlanReport { vlan_protocol: VlanProtocol::Dot1Ad, ..report.clone() };
        assert_eq!(text(&provider), format!("{expected}\nTags are of 802.1ad.\n"));
        let off = VlanReport { vlan_filtering: false, ..report };
        assert!(text(&off).ends_with("\nVLAN filtering is off, so none of this is in force: superpacket bridge --vlan-filtering\n"));
    }
}
