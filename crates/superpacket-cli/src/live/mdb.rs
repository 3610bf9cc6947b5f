//! `superpacket mdb`: which ports have joined which multicast groups, in the syntax of iproute2's
//! `bridge mdb`.

use clap::{Args, ValueEnum};
use superpacket_bridge::report::MdbReport;

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::report::{printable, show};

/// The actions of `superpacket mdb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MdbAction {
    /// Show entries: [dev PORT]
    #[value(alias = "list")]
    Show,
}

/// The arguments of `superpacket mdb`.
#[derive(Clone, Debug, Args)]
pub(crate) struct MdbArguments {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<MdbAction>,
    /// Port to show
    pub(crate) words: Vec<String>,
    /// Also show the time until each entry expires
    #[arg(short, long)]
    pub(crate) statistics: bool,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Shows the entries.
pub(crate) fn run(arguments: &MdbArguments) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    let port = match words[..] {
        [] => None,
        ["dev", port] => Some(port),
        _ => {
            return Err(Failure::Usage(format!(
                "mdb show: {:?} is not allowed here: write mdb show [dev PORT]",
                words.join(" ")
            )));
        }
    };
    let report = connect(&arguments.connection)?.mdb(port)?;
    Ok(show(arguments.json, &report, || text(&report, arguments.statistics))?)
}

/// Renders one entry per line, then the ports that lead to routers.
fn text(report: &MdbReport, statistics: bool) -> String {
    if !report.multicast_snooping {
        return "multicast snooping is off: superpacket bridge --multicast-snooping\n".to_owned();
    }
    let timer = |seconds: u64| if statistics { format!(" {seconds}") } else { String::new() };
    let mut text = String::new();
    for entry in &report.mdb {
        let vid = entry.vid.map_or(String::new(), |vid| format!(" vid {vid}"));
        let (port, group, state) =
            (printable(&entry.port), printable(&entry.grp), printable(&entry.state));
        text.push_str(&format!("port {port} grp {group} {state}{vid}{}\n", timer(entry.timer)));
    }
    if !report.router.is_empty() {
        let ports = report
            .router
            .iter()
            .map(|router| format!("{}{}", printable(&router.port), timer(router.timer)));
        text.push_str(&format!("router ports: {}\n", ports.collect::<Vec<_>>().join(", ")));
    }
    for (name, is_asked) in [("IPv4", report.querier_ipv4), ("IPv6", report.querier_ipv6)] {
        if !is_asked {
            text.push_str(&format!("no {name} querier: packets for its groups go to all ports\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use superpacket_bridge::report::{MdbEntry, MdbRouter};

    use super::*;

    #[test]
    fn entries_and_routers_have_the_words_of_iproute2() {
        let entry = |port: &str, grp: &str, vid| MdbEntry {
            port: port.into(),
            grp: grp.into(),
            vid,
            state: "temp".into(),
            timer: 259,
        };
        let report = MdbReport {
            multicast_snooping: true,
            querier_ipv4: true,
            querier_ipv6: false,
            mdb: vec![entry("tap:a", "239.1.2.3", None), entry("tap:b", "ff05::7", Some(10))],
            router: vec![
                MdbRouter { port: "packet:up".into(), timer: 250 },
                MdbRouter { port: "tap:a".into(), timer: 9 },
            ],
        };
        let lines =
            |statistics| text(&report, statistics).lines().map(str::to_owned).collect::<Vec<_>>();
        let querier = "no IPv6 querier: packets for its groups go to all ports";
        assert_eq!(
            lines(false),
            [
                "port tap:a grp 239.1.2.3 temp",
                "port tap:b grp ff05::7 temp vid 10",
                "router ports: packet:up, tap:a",
                querier
            ]
        );
        assert_eq!(
            lines(true)[1..3],
            ["port tap:b grp ff05::7 temp vid 10 259", "router ports: packet:up 250, tap:a 9"]
        );
        assert_eq!(
            text(&MdbReport::default(), false),
            "multicast snooping is off: superpacket bridge --multicast-snooping\n"
        );
    }
}
