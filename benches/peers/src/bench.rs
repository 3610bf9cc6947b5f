//! Measures a row: frames are loaded into memory for each side, results are compared, and the sides
//! are timed in turn.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, ensure};

use crate::agree::{self, Packets};
use crate::clock::{Caches, Clock, Side, Times, Work, measure};
use crate::dpdk::{Dpdk, DpdkSide};
use crate::ours::{BufferCutter, Gatherer, InPlaceJoiner, ReferenceCutter};
use crate::rows::{ETHERNET, Join, Task, super_packets};
use crate::tun::{Buffers, OFFSET, TunCutter, TunJoiner, reads};

/// The state of a measurement.
pub struct Bench {
    clock: Clock,
    caches: Caches,
    rounds: usize,
    dpdk: Option<Rc<RefCell<Dpdk>>>,
}

/// Number of sides: each of the two peers, and the engine used in the same way.
pub const SIDES: usize = 4;

/// The times measured for one row of the table.
pub struct RowTimes {
    /// Number of packets that leave the engine for the frames of a cycle.
    pub out: usize,
    /// Times of DPDK, of the engine by reference, of tun-rs, and of the engine in buffers; `None`
    /// if a side does not support the row, or is missing.
    pub sides: [Option<Times>; SIDES],
}

impl RowTimes {
    /// Appends the times of the rounds of another pass.
    pub fn extend(&mut self, pass: RowTimes) {
        for (times, more) in self.sides.iter_mut().flatten().zip(pass.sides.into_iter().flatten()) {
            for (times, more) in times.iter_mut().zip(more) {
                times.extend(more);
            }
        }
    }
}

impl Bench {
    /// Begins a pass with this number of rounds.
    pub fn new(dpdk: Option<Rc<RefCell<Dpdk>>>, rounds: usize) -> Self {
        Bench { clock: Clock::new(), caches: Caches::new(), rounds, dpdk }
    }

    /// Compares the results of all sides for a row's frames, then times them.
    ///
    /// # Errors
    /// A difference, or the failure of a side.
    pub fn row(&mut self, task: &Task) -> Result<RowTimes> {
        match task {
            Task::Join(join) => self.join(join),
            Task::Gather(frame) => self.gather(frame),
            Task::Copy(frame) => self.copy(frame),
        }
    }

    fn join(&mut self, join: &Join) -> Result<RowTimes> {
        let cycles = join.cycles();
        let buffers = RefCell::new(Buffers::new(join));
        let mut gatherer = Gatherer::new(join, &cycles);
        let mut joiner = InPlaceJoiner::new(join, &buffers);
        let mut tun = TunJoiner::new(join, &buffers);

        let (gathered, joined) = (gatherer.outputs(), joiner.outputs());
        let out = gathered.len();
        ensure!(joined.len() == out, "{out} packets by reference, {} in buffers", joined.len());
        agree::in_place(ethernet(&join.frames), virtio(&joined), virtio(&tun.merged()?))?;
        if let Some(dpdk) = &self.dpdk {
            dpdk.borrow_mut().load_join(join)?;
            let theirs = dpdk.borrow_mut().outputs()?;
            agree::by_reference(ethernet(&join.frames), ethernet(&gathered), ethernet(&theirs))?;
        }
        let mut rte_gro = self.dpdk.as_ref().map(DpdkSide::new);
        let rte_gro = rte_gro.as_mut().map(|side| side as &mut dyn Side);
        let sides =
            self.measure([rte_gro, Some(&mut gatherer), Some(&mut tun), Some(&mut joiner)])?;
        Ok(RowTimes { out, sides })
    }

    fn gather(&mut self, frame: &[u8]) -> Result<RowTimes> {
        let packets = super_packets(frame);
        let mut cutter = ReferenceCutter::new(&packets);
        let ours = cutter.outputs();
        ensure!(ours.len() == cutter.units(), "{} segments", ours.len());
        if let Some(dpdk) = &self.dpdk {
            dpdk.borrow_mut().load_cut(frame)?;
            let theirs = dpdk.borrow_mut().outputs()?;
            agree::segments(ethernet(&ours), ethernet(&theirs))?;
        }
        let mut rte_gso = self.dpdk.as_ref().map(DpdkSide::new);
        let rte_gso = rte_gso.as_mut().map(|side| side as &mut dyn Side);
        let sides = self.measure([rte_gso, Some(&mut cutter), None, None])?;
        Ok(RowTimes { out: ours.len(), sides })
    }

    fn copy(&mut self, frame: &[u8]) -> Result<RowTimes> {
        let reads = RefCell::new(reads(frame)?);
        let mut cutter = BufferCutter::new(&reads);
        let mut tun = TunCutter::new(&reads);
        cutter.cycle(0, &self.clock);
        tun.cycle(0, &self.clock);
        ensure!(
            cutter.out.segments() == tun.out.segments() && cutter.out.segments == cutter.units(),
            "cut otherwise than by tun-rs"
        );
        let out = cutter.out.segments;
        let sides = self.measure([None, None, Some(&mut tun), Some(&mut cutter)])?;
        Ok(RowTimes { out, sides })
    }

    fn measure(&mut self, sides: [Option<&mut dyn Side>; SIDES]) -> Result<[Option<Times>; SIDES]> {
        let there = sides.each_ref().map(Option::is_some);
        let mut sides: Vec<_> = sides.into_iter().flatten().collect();
        let mut times =
            measure(&mut sides, self.rounds, &self.clock, &mut self.caches)?.into_iter();
        Ok(there.map(|there| if there { times.next() } else { None }))
    }
}

fn ethernet(frames: &[Vec<u8>]) -> Packets<'_> {
    Packets { frames, header: ETHERNET }
}

fn virtio(frames: &[Vec<u8>]) -> Packets<'_> {
    Packets { frames, header: OFFSET }
}
