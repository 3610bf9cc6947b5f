//! DPDK's rte_gro and rte_gso in a separate process (`dpdk/peer.c`), which reads its commands by
//! lines.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use superpacket_traffic::workload::TCP_PAYLOAD;
use tempfile::TempDir;

use crate::clock::{CACHES, Caches, Clock, SAMPLES, SAMPLES_END, Side};
use crate::frame_file;
use crate::rows::{Join, super_packets};

/// Arguments for DPDK's environment: no hugepages, no devices, no shared files.
const ENVIRONMENT: [&str; 7] =
    ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=error", "-m", "128"];

/// The prefix of the lines with which the DPDK process answers.
const ANSWER: &str = "answer ";

/// The process, and the files of its input and output.
pub struct Dpdk {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Dpdk {
    /// Starts the program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path) -> Result<Self> {
        let mut process = Command::new(program)
            .args(ENVIRONMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let orders = process.stdin.take().context("no pipe")?;
        let answers = BufReader::new(process.stdout.take().context("no pipe")?);
        Ok(Dpdk { process, orders, answers, folder: tempfile::tempdir()? })
    }

    fn order(&mut self, order: &str) -> Result<String> {
        writeln!(self.orders, "{order}")?;
        let mut line = String::new();
        // DPDK's environment may write other lines.
        while !line.starts_with(ANSWER) {
            line.clear();
            ensure!(self.answers.read_line(&mut line)? > 0, "{order}: the DPDK program has ended");
        }
        Ok(line[ANSWER.len()..].trim_end().to_owned())
    }

    /// Returns the version of DPDK.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn version(&mut self) -> Result<String> {
        self.order("version")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends it the frames of a row.
    ///
    /// # Errors
    /// If it does not accept them.
    pub fn load_join(&mut self, join: &Join) -> Result<()> {
        let path = self.file("in");
        frame_file::write(&path, &join.frames)?;
        self.order(&format!(
            "join {} {} {} {}",
            path.display(),
            join.batch,
            join.flows,
            join.copies()
        ))?;
        Ok(())
    }

    /// Sends it a super-packet.
    ///
    /// # Errors
    /// If it does not accept it.
    pub fn load_cut(&mut self, frame: &[u8]) -> Result<()> {
        let path = self.file("in");
        frame_file::write(&path, &[frame.to_vec()])?;
        self.order(&format!(
            "cut {} {TCP_PAYLOAD} {}",
            path.display(),
            super_packets(frame).len()
        ))?;
        Ok(())
    }

    /// Returns the frames that leave for the frames of a cycle.
    ///
    /// # Errors
    /// If it does not write them.
    pub fn outputs(&mut self) -> Result<Vec<Vec<u8>>> {
        let path = self.file("out");
        self.order(&format!("outputs {}", path.display()))?;
        frame_file::read(&path)
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        // The process may hang instead of reading the end of its input. It has no state to lose.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// DPDK with the data that it was sent.
pub struct DpdkSide(Rc<RefCell<Dpdk>>);

impl DpdkSide {
    pub fn new(dpdk: &Rc<RefCell<Dpdk>>) -> Self {
        DpdkSide(Rc::clone(dpdk))
    }

    fn figure(&self, order: &str) -> Result<f64> {
        let answer = self.0.borrow_mut().order(order)?;
        answer.parse().with_context(|| format!("{order}: {answer}"))
    }
}

impl Side for DpdkSide {
    fn hot(&mut self, _clock: &Clock) -> Result<f64> {
        self.figure(&format!("hot {SAMPLES} {}", SAMPLES_END.as_nanos()))
    }

    fn memory(&mut self, _clock: &Clock, _caches: &mut Caches) -> Result<f64> {
        self.figure(&format!("memory {CACHES}"))
    }
}
