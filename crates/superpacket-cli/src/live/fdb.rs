//! `superpacket fdb`: a bridge's address table, in the syntax of iproute2's `bridge fdb`.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde_json::json;
use superpacket_bridge::fdb::{FdbEntry, FdbFilter, FdbPage, MOST_LISTED, Station};
use superpacket_bridge::vlan::MOST_VLAN;
use superpacket_daemon::control::Client;

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::report::{grouped, print, print_json, printable, terminal_rows};

/// The actions of `superpacket fdb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FdbAction {
    /// Show entries: [dev PORT] [vlan VID] [static | dynamic]
    #[value(alias = "list")]
    Show,
    /// Add a static entry: ADDRESS dev PORT [vlan VID] static
    Add,
    /// Add a static entry, or replace an existing one: ADDRESS dev PORT [vlan VID] static
    Replace,
    /// Delete an entry, static or learned: ADDRESS dev PORT [vlan VID]
    #[value(alias = "delete")]
    Del,
    /// Delete learned addresses: [dev PORT] [vlan VID]
    Flush,
}

/// The arguments of `superpacket fdb`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FdbArguments {
    /// What to do [default: show]
    #[arg(value_enum)]
    pub(crate) action: Option<FdbAction>,
    /// Entries to show or change
    pub(crate) words: Vec<String>,
    /// Also show how long ago each address was last seen
    #[arg(short, long)]
    pub(crate) statistics: bool,
    /// Show all entries, even if they exceed the screen
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON, with the names of `bridge -json fdb`
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Number of lines of a screen that show no entries: one for the number of further entries, one for
/// the next shell prompt.
const OTHER_LINES: usize = 2;

/// Runs the command.
pub(crate) fn run(arguments: &FdbArguments) -> Result<(), Failure> {
    let request = FdbRequest::read(arguments.action.unwrap_or(FdbAction::Show), &arguments.words)
        .map_err(Failure::Usage)?;
    let mut client = connect(&arguments.connection)?;
    let entry = match request {
        FdbRequest::Show(filter) => return show(&mut client, &filter, arguments),
        FdbRequest::Flush(filter) => {
            let flushed = client.flush_fdb(&filter)?;
            if arguments.json {
                print_json(&json!({ "flushed": flushed }))?;
            }
            return Ok(());
        }
        FdbRequest::Add(port, station) => client.add_static_entry(&port, station)?,
        FdbRequest::Replace(port, station) => client.replace_static_entry(&port, station)?,
        FdbRequest::Delete(port, station) => client.delete_entry(&port, station)?,
    };
    if arguments.json {
        print_json(&entry)?;
    }
    Ok(())
}

/// A request to the bridge, parsed from the command line.
#[derive(Debug, PartialEq, Eq)]
enum FdbRequest {
    Show(FdbFilter),
    Add(String, Station),
    Replace(String, Station),
    Delete(String, Station),
    Flush(FdbFilter),
}

impl FdbRequest {
    /// Parses the words after the action.
    fn read(action: FdbAction, words: &[String]) -> Result<FdbRequest, String> {
        let (name, form) = match action {
            FdbAction::Show => ("show", "[dev PORT] [vlan VID] [static | dynamic]"),
            FdbAction::Add => ("add", "ADDRESS dev PORT [vlan VID] static"),
            FdbAction::Replace => ("replace", "ADDRESS dev PORT [vlan VID] static"),
            FdbAction::Del => ("del", "ADDRESS dev PORT [vlan VID]"),
            FdbAction::Flush => ("flush", "[dev PORT] [vlan VID]"),
        };
        let wrong = |problem: String| format!("fdb {name}: {problem}: write fdb {name} {form}");
        let mut words = words.iter().map(String::as_str);
        let adds = matches!(action, FdbAction::Add | FdbAction::Replace);
        let address = match action {
            FdbAction::Add | FdbAction::Replace | FdbAction::Del => {
                Some(words.next().ok_or_else(|| wrong("no address".into()))?)
            }
            FdbAction::Show | FdbAction::Flush => None,
        };
        let mut filter = FdbFilter::default();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| wrong(format!("no value after {word:?}")));
            match word {
                "dev" | "brport" if filter.port.is_none() => {
                    filter.port = Some(value()?.to_owned())
                }
                "vlan" if filter.vlan.is_none() => {
                    let vlan = value()?;
                    let number =
                        vlan.parse().ok().filter(|number| (1..=MOST_VLAN).contains(number));
                    filter.vlan = Some(number.ok_or_else(|| {
                        wrong(format!("a VLAN is 1 to {MOST_VLAN}, not {vlan:?}"))
                    })?);
                }
                "static" | "dynamic"
                    if filter.is_static.is_none() && (adds || action == FdbAction::Show) =>
                {
                    filter.is_static = Some(word == "static");
                }
                // Accepted for compatibility with iproute2: every entry belongs to the bridge, and
                // static entries never move.
                "master" => {}
                "sticky" if adds => {}
                "local" | "permanent" | "self" => {
                    return Err(wrong(format!("{word:?}: the bridge has no addresses of its own")));
                }
                _ => {
                    return Err(wrong(format!("{word:?} is not allowed here, or is repeated")));
                }
            }
        }
        let Some(address) = address else {
            return Ok(if action == FdbAction::Flush {
                FdbRequest::Flush(filter)
            } else {
                FdbRequest::Show(filter)
            });
        };
        let station = Station::parse(address, filter.vlan).map_err(&wrong)?;
        let port = filter.port.ok_or_else(|| wrong("no port".into()))?;
        match (action, filter.is_static) {
            (FdbAction::Add, Some(true)) => Ok(FdbRequest::Add(port, station)),
            (FdbAction::Replace, Some(true)) => Ok(FdbRequest::Replace(port, station)),
            (FdbAction::Add | FdbAction::Replace, _) => {
                Err(wrong("only static entries can be added, the others are learned".into()))
            }
            _ => Ok(FdbRequest::Delete(port, station)),
        }
    }
}

/// Prints the table, on a terminal only as much as fits the screen.
fn show(client: &mut Client, filter: &FdbFilter, arguments: &FdbArguments) -> Result<(), Failure> {
    let rows = terminal_rows().filter(|_| !arguments.all && !arguments.json);
    if let Some(rows) = rows {
        let page = client.fdb(filter, None, rows.saturating_sub(OTHER_LINES).max(1))?;
        return Ok(print(&screen(&page, arguments.statistics), false)?);
    }
    let mut all = Vec::new();
    let mut last: Option<FdbEntry> = None;
    let mut output = io::BufWriter::new(io::stdout().lock());
    loop {
        let FdbPage { entries, more } = client.fdb(filter, last.as_ref(), MOST_LISTED)?;
        last = entries.last().cloned();
        if arguments.json {
            all.extend(entries);
        } else {
            entries.iter().try_for_each(|entry| {
                output.write_all(line(entry, arguments.statistics).as_bytes())
            })?;
        }
        if more == 0 || last.is_none() {
            break;
        }
    }
    output.flush()?;
    drop(output);
    if arguments.json {
        all.iter_mut()
            .for_each(|entry| entry.updated = entry.updated.filter(|_| arguments.statistics));
        print_json(&all)?;
    }
    Ok(())
}

fn screen(page: &FdbPage, statistics: bool) -> String {
    let mut text: String = page.entries.iter().map(|entry| line(entry, statistics)).collect();
    if page.more != 0 {
        text.push_str(&format!("{} more, --all\n", grouped(page.more as u64)));
    }
    text
}

/// Renders an entry in the format of `bridge fdb`.
fn line(entry: &FdbEntry, statistics: bool) -> String {
    let mut words = vec![printable(&entry.mac), "dev".to_owned(), printable(&entry.ifname)];
    if let Some(vlan) = entry.vlan {
        words.push(format!("vlan {vlan}"));
    }
    if statistics {
        words.push(match entry.updated {
            Some(seconds) => format!("updated {seconds}s"),
            None => "updated -".to_owned(),
        });
    }
    words.extend(entry.flags.iter().map(|flag| printable(flag)));
    words.extend(Some(printable(&entry.state)).filter(|state| !state.is_empty()));
    words.join(" ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<FdbRequest, String> {
        let (action, words) = words.split_once(' ').unwrap_or((words, ""));
        let action = FdbAction::from_str(action, false)?;
        FdbRequest::read(action, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn it_accepts_the_syntax_of_iproute2() {
        let station = |vlan| Station { vlan, address: [0x52, 0x54, 0, 0x12, 0x34, 0x56] };
        let port = || "packet:left".to_owned();
        let filter = |port: Option<String>, vlan, is_static| FdbFilter { port, vlan, is_static };
        for (words, expected) in [
            ("show", FdbRequest::Show(FdbFilter::default())),
            (
                "show vlan 10 dev packet:left static",
                FdbRequest::Show(filter(Some(port()), Some(10), Some(true))),
            ),
            (
                "show brport packet:left dynamic",
                FdbRequest::Show(filter(Some(port()), None, Some(false))),
            ),
            (
                "add 52:54:00:12:34:56 dev packet:left master vlan 10 sticky static",
                FdbRequest::Add(port(), station(10)),
            ),
            (
                "replace 52:54:00:12:34:56 dev packet:left vlan 10 static",
                FdbRequest::Replace(port(), station(10)),
            ),
            ("del 52:54:00:12:34:56 dev packet:left", FdbRequest::Delete(port(), station(0))),
            (
                "flush dev packet:left vlan 4094",
                FdbRequest::Flush(filter(Some(port()), Some(4094), None)),
            ),
        ] {
            assert_eq!(read(words), Ok(expected), "{words}");
        }
        for (words, says) in [
            ("add", "fdb add: no address: write fdb add ADDRESS dev PORT [vlan VID] static"),
            ("add 52:54:00:12:34:56 static", "no port"),
            ("add 52:54:00:12:34:56 dev packet:left", "only static entries can be added"),
            ("add 52:54:00:12:34:56 dev packet:left dynamic", "only static entries can be added"),
            (
                "add 52:54:00:12:34:56 dev packet:left permanent",
                "\"permanent\": the bridge has no addresses of its own",
            ),
            (
                "add 01:00:5e:00:00:07 dev packet:left static",
                "01:00:5e:00:00:07 is a group's address",
            ),
            (
                "replace 52:54:00:12:34:56 dev packet:left",
                "write fdb replace ADDRESS dev PORT [vlan VID] static",
            ),
            ("del 52:54:00:12:34 dev packet:left", "\"52:54:00:12:34\" is no hardware address"),
            ("del 52:54:00:12:34:56 dev packet:left static", "\"static\" is not allowed here"),
            ("show dev", "no value after \"dev\""),
            ("show vlan 4095", "a VLAN is 1 to 4094, not \"4095\""),
            ("show vlan 1 vlan 2", "\"vlan\" is not allowed here, or is repeated"),
            ("flush static", "\"static\" is not allowed here"),
        ] {
            let error = read(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
    }

    #[test]
    fn it_reads_like_iproute2_and_fits_a_screen() {
        let learned = FdbEntry {
            mac: "52:54:00:12:34:56".into(),
            ifname: "packet:left".into(),
            vlan: Some(10),
            updated: Some(3),
            flags: Vec::new(),
            state: String::new(),
        };
        let fixed = FdbEntry {
            vlan: None,
            updated: None,
            flags: vec!["sticky".into()],
            state: "static".into(),
            ..learned.clone()
        };
        let page = FdbPage { entries: vec![learned, fixed], more: 0 };
        let expected = "52:54:00:12:34:56 dev packet:left vlan 10\n52:54:00:12:34:56 dev packet:left sticky static\n";
        assert_eq!(screen(&page, false), expected);
        let page = FdbPage { more: 1234, ..page };
        let expected = "52:54:00:12:34:56 dev packet:left vlan 10 updated 3s\n\
                        52:54:00:12:34:56 dev packet:left updated - sticky static\n1,234 more, --all\n";
        assert_eq!(screen(&page, true), expected);
    }
}
