//! DPDK's rte_gro and rte_gso, in a process of their own (`dpdk/peer.c`) that is told what to do by
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

/// DPDK's environment: no hugepages, no devices, no files that other programs see.
const ENVIRONMENT: [&str; 7] =
    ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=error", "-m", "128"];

/// What its answers begin with.
const ANSWER: &str = "answer ";

/// The process, and files for what goes in and comes out.
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
    /// If it cannot be run.
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
        // DPDK's environment may write lines of its own.
        while !line.starts_with(ANSWER) {
            line.clear();
            ensure!(self.answers.read_line(&mut line)? > 0, "{order}: the DPDK program has ended");
        }
        Ok(line[ANSWER.len()..].trim_end().to_owned())
    }

    /// Says which version of DPDK it is.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn version(&mut self) -> Result<String> {
        self.order("version")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Gives it the frames of a row.
    ///
    /// # Errors
    /// If it does not take them.
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

    /// Gives it a super-packet.
    ///
    /// # Errors
    /// If it does not take it.
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

    /// The frames that leave for those of a cycle.
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
        // Nothing is lost with it, should it hang instead of reading the end of its orders.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// DPDK on what it has been given.
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
