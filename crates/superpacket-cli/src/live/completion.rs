//! Completion candidates from a running bridge (the names of its ports and their offloads), and the
//! keywords of the commands.

use std::sync::mpsc::channel;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use superpacket_bridge::control::{Client, ClientError, default_path};
use superpacket_bridge::settings::{Forwarding, PortSettings, TooBig};

/// How long to wait for the bridge's answer: the user has pressed a key and waits.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The command line that is being completed.
struct CommandLine {
    words: Vec<String>,
    /// Index in `words` of the word at the cursor.
    cursor: usize,
}

impl CommandLine {
    /// Reads the words that the shell has passed to this process after `--`.
    fn read() -> CommandLine {
        let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
        let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        // Some shells cut the line at the cursor, the others pass its index.
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
        let cursor = index.unwrap_or(words.len().saturating_sub(1));
        CommandLine { words, cursor }
    }

    /// Returns the word before the cursor.
    fn previous(&self) -> &str {
        self.cursor
            .checked_sub(1)
            .and_then(|before| self.words.get(before))
            .map_or("", String::as_str)
    }

    /// Returns the control socket that the line names, or the default one.
    fn control(&self) -> Option<std::path::PathBuf> {
        let named = self
            .words
            .iter()
            .zip(self.words.iter().skip(1))
            .find(|(option, _)| *option == "--control")
            .map(|(_, path)| path.as_str());
        let joined = || self.words.iter().find_map(|word| word.strip_prefix("--control="));
        named.or_else(joined).map(Into::into).or_else(default_path)
    }
}

/// Queries the running bridge. Returns `None` if there is no bridge, or if it does not answer
/// within [`TIMEOUT`].
fn query<T: Send + 'static>(
    line: &CommandLine,
    request: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send + 'static,
) -> Option<T> {
    let path = line.control()?;
    let (sender, receiver) = channel();
    // The thread may still wait after the timeout; the process ends once it has answered the shell.
    std::thread::spawn(move || {
        sender.send(Client::connect(&path).and_then(|mut client| request(&mut client)))
    });
    receiver.recv_timeout(TIMEOUT).ok()?.ok()
}

fn candidate(word: &str, help: String) -> CompletionCandidate {
    CompletionCandidate::new(word).help(Some(help.into()))
}

fn plain(words: impl IntoIterator<Item = &'static str>) -> Vec<CompletionCandidate> {
    words.into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the ports of the running bridge.
pub(super) fn ports() -> Vec<CompletionCandidate> {
    ports_of(&CommandLine::read())
}

fn ports_of(line: &CommandLine) -> Vec<CompletionCandidate> {
    let ports = query(line, |client| client.ports(None)).unwrap_or_default();
    let help = |string: &str, name: &str, state: &str| {
        if string == name { state.to_owned() } else { format!("{string}, {state}") }
    };
    ports
        .iter()
        .map(|port| candidate(&port.port, help(&port.string, &port.port, &port.state)))
        .collect()
}

/// Returns the ports of the running bridge, or nothing after `add`, which takes a new port.
pub(super) fn known_ports() -> Vec<CompletionCandidate> {
    let line = CommandLine::read();
    match line.previous() {
        "add" => Vec::new(),
        _ => ports_of(&line),
    }
}

/// Returns the offloads of the port named in the line, with their states in the running bridge.
pub(super) fn features() -> Vec<CompletionCandidate> {
    let line = CommandLine::read();
    let ports = query(&line, |client| client.features(None)).unwrap_or_default();
    let port = ports
        .iter()
        .find(|port| line.words[..line.cursor.min(line.words.len())].contains(&port.port))
        .or(ports.first());
    let state = |active: bool| if active { "on" } else { "off" }.to_owned();
    port.map(|port| {
        port.features
            .iter()
            .map(|report| candidate(&report.feature, state(report.active)))
            .collect()
    })
    .unwrap_or_default()
}

/// Returns the names of settings that `superpacket limits` and `superpacket port set` accept.
pub(super) fn settings() -> Vec<CompletionCandidate> {
    plain(PortSettings::names())
}

/// Returns the words that the setting before the cursor accepts.
pub(super) fn values() -> Vec<CompletionCandidate> {
    plain(values_of(&CommandLine::read().previous().replace('-', "_")))
}

fn values_of(setting: &str) -> Vec<&'static str> {
    match setting {
        "too_big" => TooBig::NAMES.map(|(name, _)| name).to_vec(),
        "delivery" => vec!["per-poll", "at-once"],
        "storage" => vec!["fragments", "linear"],
        "gro_past_push" | "gro_udp_no_checksum" | "gro_uneven" | "lro_acks" => vec!["on", "off"],
        setting if Forwarding::NAMES.contains(&setting) => vec!["on", "off"],
        _ => Vec::new(),
    }
}

/// Returns the settings that can follow the port in `port set`, or the values of the setting before
/// the cursor.
pub(super) fn set_words() -> Vec<CompletionCandidate> {
    let line = CommandLine::read();
    let previous = line.previous().replace('-', "_");
    match PortSettings::names().any(|name| name == previous) {
        true => plain(values_of(&previous)),
        false if line.words.iter().any(|word| word == "set") => settings(),
        false => Vec::new(),
    }
}

/// Returns the keywords of `superpacket fdb`.
pub(super) fn fdb_words() -> Vec<CompletionCandidate> {
    keywords_or_ports(&["vlan"], ["dev", "vlan", "static", "dynamic"])
}

/// Returns the keywords of `superpacket vlan`.
pub(super) fn vlan_words() -> Vec<CompletionCandidate> {
    keywords_or_ports(&["vid"], ["dev", "vid", "pvid", "untagged"])
}

/// Returns the keywords of `superpacket mdb`.
pub(super) fn mdb_words() -> Vec<CompletionCandidate> {
    keywords_or_ports(&[], ["dev"])
}

/// Returns the ports after `dev`, nothing after words that take a number, and otherwise the
/// keywords.
fn keywords_or_ports<const N: usize>(
    numbers: &[&str],
    keywords: [&'static str; N],
) -> Vec<CompletionCandidate> {
    let line = CommandLine::read();
    match line.previous() {
        "dev" | "brport" => ports_of(&line),
        word if numbers.contains(&word) => Vec::new(),
        _ => plain(keywords),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_with_words_takes_those_that_are_completed() {
        for name in PortSettings::names() {
            for word in values_of(name) {
                let mut settings = PortSettings::new("memory:m".parse().expect("a port string"));
                super::super::limits::set(&mut settings, name, word).expect(name);
            }
            let has_words =
                !superpacket_bridge::settings::Limits::names().any(|limit| limit == name);
            assert_eq!(!values_of(name).is_empty(), has_words, "{name}");
        }
    }

    #[test]
    fn the_socket_is_the_one_that_the_line_names() {
        let line = |words: &str| CommandLine {
            words: words.split(' ').map(str::to_owned).collect(),
            cursor: 2,
        };
        for words in [
            "superpacket features left --control /a.sock",
            "superpacket --control=/a.sock features",
            "superpacket features --control /a.sock left",
        ] {
            assert_eq!(line(words).control(), Some("/a.sock".into()), "{words}");
        }
        assert_eq!(line("superpacket features left").control(), default_path());
        assert_eq!(line("superpacket fdb dev left").previous(), "fdb");
    }
}
