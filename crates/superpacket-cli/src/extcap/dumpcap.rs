//! Runs dumpcap, the program by which Wireshark itself captures. It exists wherever Wireshark does,
//! and often it alone may capture.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::sentence::fits;
use crate::failure::Failure;

/// Maximum time to wait for the end of dumpcap after it has closed its output; it is then killed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A network device that dumpcap can capture from.
pub(super) struct Device {
    /// The name by which dumpcap finds it.
    pub(super) name: String,
    /// The name for users, with a description if there is one.
    pub(super) display: String,
}

/// Returns the paths at which dumpcap may be installed: its bare name, which is looked up in
/// `PATH`, and the folders that Wireshark's installers use without changing `PATH`.
fn programs() -> Vec<PathBuf> {
    let mut programs = vec![PathBuf::from("dumpcap")];
    if cfg!(windows) {
        let folder = std::env::var_os("ProgramFiles").unwrap_or(r"C:\Program Files".into());
        programs.push(PathBuf::from(folder).join(r"Wireshark\dumpcap.exe"));
    } else {
        programs.extend(
            [
                "/usr/bin/dumpcap",
                "/usr/sbin/dumpcap",
                "/usr/local/bin/dumpcap",
                "/Applications/Wireshark.app/Contents/MacOS/dumpcap",
            ]
            .map(PathBuf::from),
        );
    }
    programs
}

/// Starts dumpcap with these arguments, and with pipes for its standard output and error output.
fn start(arguments: &[&str]) -> Result<Child, Failure> {
    for program in programs() {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Dumpcap(error.to_string())),
            Ok(child) => return Ok(child),
        }
    }
    Err(Failure::Dumpcap("not found in PATH: it is a part of Wireshark".to_owned()))
}

fn output(arguments: &[&str]) -> Result<Output, Failure> {
    start(arguments)?.wait_with_output().map_err(|error| Failure::Dumpcap(error.to_string()))
}

/// Returns the devices in the order of `dumpcap -D`; the first one is the default for captures.
///
/// # Errors
/// If dumpcap is missing or fails.
pub(super) fn devices() -> Result<Vec<Device>, Failure> {
    let output = output(&["-D", "-M"])?;
    if !output.status.success() {
        return Err(Failure::Dumpcap(message(&String::from_utf8_lossy(&output.stderr))));
    }
    Ok(parse_devices(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses the output of `dumpcap -D -M`. A line has a number and fields separated by tabs; the
/// first three are the device's name, the vendor's description and the name given by the user.
fn parse_devices(list: &str) -> Vec<Device> {
    let device = |line: &str| {
        let mut fields = line.split_once(". ")?.1.split('\t').map(str::trim);
        let name = fields.next().filter(|name| !name.is_empty())?;
        let [description, friendly] = [fields.next()?, fields.next()?];
        // The names of Windows have braces, which Wireshark cannot read. Dumpcap also takes the
        // name that the user knows.
        let name = [name, friendly].into_iter().find(|name| fits(name) && !name.is_empty())?;
        let other =
            [friendly, description].into_iter().find(|&text| !text.is_empty() && text != name);
        let display = other.map_or(name.to_owned(), |other| format!("{name} ({other})"));
        Some(Device { name: name.to_owned(), display })
    };
    list.lines().filter_map(device).collect()
}

/// Returns dumpcap's error message for an invalid capture filter, on one line; empty if the filter
/// is valid. It is compiled for the first device, because Wireshark does not say for which device
/// it asks.
///
/// # Errors
/// If dumpcap is missing or fails.
pub(super) fn filter_problem(filter: &str) -> Result<String, Failure> {
    let Some(device) = devices()?.into_iter().next() else { return Ok(String::new()) };
    let output = output(&["-i", &device.name, "-f", filter, "-d"])?;
    let text = message(&String::from_utf8_lossy(&output.stderr));
    // Dumpcap does not fail. If it cannot open the device, nothing is known about the filter.
    let is_wrong = text.contains("capture filter");
    Ok(if is_wrong { format!("{text}\n") } else { String::new() })
}

/// Extracts dumpcap's error message from its error output, as one line.
fn message(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| {
        let is_status =
            ["Capturing on ", "File: ", "Packets "].iter().any(|word| line.starts_with(word));
        !line.is_empty() && !is_status
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    match text.strip_prefix("dumpcap: ") {
        Some(text) => text.to_owned(),
        None if text.is_empty() => "ended without a message".to_owned(),
        None => text,
    }
}

/// A running capture, which [`finish`](Self::finish) or [`stop`](Self::stop) ends.
pub(super) struct Capture {
    child: Child,
    /// The thread that reads what dumpcap says.
    messages: JoinHandle<String>,
}

impl Capture {
    /// Starts a capture, and returns it with the stream of its packets.
    ///
    /// # Errors
    /// If dumpcap is missing.
    pub(super) fn start(
        device: &str,
        filter: Option<&str>,
    ) -> Result<(Self, ChildStdout), Failure> {
        let mut arguments = vec!["-q", "-w", "-", "-i", device];
        if let Some(filter) = filter {
            arguments.extend(["-f", filter]);
        }
        let mut child = start(&arguments)?;
        let (Some(packets), Some(mut messages)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Failure::Dumpcap("has no output".to_owned()));
        };
        let read_all = move || {
            let mut bytes = Vec::new();
            // What was read before an error is all that is known.
            let _ = messages.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let messages = std::thread::spawn(read_all);
        Ok((Capture { child, messages }, packets))
    }

    /// Waits for the end of dumpcap. Called when dumpcap has closed the pipe of its packets.
    ///
    /// # Errors
    /// If it failed.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let closed = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if closed.elapsed() < LAST_WORDS => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => {
                    self.stop();
                    return Ok(());
                }
            }
        };
        match (status.success(), self.messages.join()) {
            (true, _) => Ok(()),
            (false, text) => Err(Failure::Dumpcap(message(&text.unwrap_or_default()))),
        }
    }

    /// Kills dumpcap.
    pub(super) fn stop(mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_that_wireshark_can_read() {
        let list = "1. eth0\t\t\t0\t192.0.2.2\tnetwork\t\n2. lo\t\tLoopback\t0\t127.0.0.1\tloopback\n\
            3. \\Device\\NPF_{01-AB}\tIntel I219\tWi-Fi\t0\t\tnetwork\n4. \\Device\\NPF_{0}\t\t\t0\n";
        let devices: Vec<_> =
            parse_devices(list).into_iter().map(|device| (device.name, device.display)).collect();
        let pair = |name: &str, display: &str| (name.to_owned(), display.to_owned());
        assert_eq!(
            devices,
            [
                pair("eth0", "eth0"),
                pair("lo", "lo (Loopback)"),
                pair("Wi-Fi", "Wi-Fi (Intel I219)")
            ]
        );
    }

    #[test]
    fn messages_are_one_line_without_the_status() {
        let text =
            "Capturing on 'x'\ndumpcap: There is no device named \"x\".\n(No such device exists)\n";
        assert_eq!(message(text), "There is no device named \"x\". (No such device exists)");
        assert_eq!(
            message("Capturing on 'x'\nFile: -\nPackets captured: 0\n"),
            "ended without a message"
        );
    }
}
