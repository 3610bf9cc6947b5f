//! A virtual machine that is emulated by QEMU, and the commands that it runs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A virtual machine. Dropping it stops it.
pub struct Emulated {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Emulated {
    /// Boots a virtual machine that runs these shell commands, with these arguments of QEMU.
    pub fn start(commands: &str, arguments: &[String]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/guest/run");
        let mut child = Command::new(script)
            .arg(commands)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script is there");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Emulated { child, output }
    }

    /// Waits until the commands print a line that begins like this, and returns it.
    ///
    /// # Panics
    /// If the commands end before.
    pub fn wait_for(&mut self, begin: &str) -> String {
        let mut before = String::new();
        loop {
            let mut line = String::new();
            let count = self.output.read_line(&mut line).expect("text");
            assert_ne!(count, 0, "the guest never says {begin:?}: {before}");
            if line.starts_with(begin) {
                return line.trim_end().to_owned();
            }
            before.push_str(&line);
        }
    }

    /// Waits until the commands end, and returns the rest of what they print.
    ///
    /// # Panics
    /// If they fail.
    pub fn finish(mut self) -> String {
        let mut rest = String::new();
        while self.output.read_line(&mut rest).expect("text") != 0 {}
        let status = self.child.wait().expect("it ended");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        // The script stops QEMU at this signal, and `timeout` does at the latest.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32)
            && self.child.try_wait().is_ok_and(|status| status.is_none())
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
