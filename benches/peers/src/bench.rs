//! A row: frames brought into memory for each side, results compared, sides measured in turn.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, ensure};

use crate::agree::{self, Packets};
use crate::clock::{Caches, Clock, Side, Work, measure};
use crate::dpdk::{Dpdk, DpdkSide};
use crate::ours::{BufferCutter, Gatherer, InPlaceJoiner, ReferenceCutter};
use crate::rows::{ETHERNET, Join, Task, super_packets};
use crate::tun::{Buffers, OFFSET, TunCutter, TunJoiner, reads};

/// What is needed to measure.
pub struct Bench {
    clock: Clock,
    caches: Caches,
    rounds: usize,
    dpdk: Option<Rc<RefCell<Dpdk>>>,
}

/// Nanoseconds a frame or segment, hot and from memory.
pub type Figure = [f64; 2];

/// A row's figures. A side that does not do this, or is not there, has none.
pub struct Figures {
    /// Packets that leave the engine for the frames of a cycle.
    pub out: usize,
    pub dpdk: Option<Figure>,
    pub by_reference: Option<Figure>,
    pub tun: Option<Figure>,
    pub in_buffers: Option<Figure>,
}

impl Bench {
    pub fn new(dpdk: Option<Rc<RefCell<Dpdk>>>, rounds: usize) -> Self {
        Bench { clock: Clock::new(), caches: Caches::new(), rounds, dpdk }
    }

    /// Compares what the sides make of a row's frames, then times them.
    ///
    /// # Errors
    /// Where they differ, or what kept one from being measured.
    pub fn row(&mut self, task: &Task) -> Result<Figures> {
        match task {
            Task::Join(join) => self.join(join),
            Task::Gather(frame) => self.gather(frame),
            Task::Copy(frame) => self.copy(frame),
        }
    }

    fn join(&mut self, join: &Join) -> Result<Figures> {
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
        let figures = self.measure([rte_gro, Some(&mut gatherer), Some(&mut tun), Some(&mut joiner)])?;
        let [dpdk, by_reference, tun, in_buffers] = figures;
        Ok(Figures { out, dpdk, by_reference, tun, in_buffers })
    }

    fn gather(&mut self, frame: &[u8]) -> Result<Figures> {
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
        let [dpdk, by_reference] = self.measure([rte_gso, Some(&mut cutter)])?;
        Ok(Figures { out: ours.len(), dpdk, by_reference, tun: None, in_buffers: None })
    }

    fn copy(&mut self, frame: &[u8]) -> Result<Figures> {
        let reads = RefCell::new(reads(frame)?);
        let mut cutter = BufferCutter::new(&reads);
        let mut tun = TunCutter::new(&reads);
        cutter.cycle(0, &self.clock);
        tun.cycle(0, &self.clock);
        ensure!(cutter.out.segments() == tun.out.segments() && cutter.out.segments == cutter.units(), "cut otherwise than by tun-rs");
        let out = cutter.out.segments;
        let [tun, in_buffers] = self.measure([Some(&mut tun), Some(&mut cutter)])?;
        Ok(Figures { out, dpdk: None, by_reference: None, tun, in_buffers })
    }

    fn measure<const COUNT: usize>(&mut self, sides: [Option<&mut dyn Side>; COUNT]) -> Result<[Option<Figure>; COUNT]> {
        let mut places = Vec::new();
        let mut there = Vec::new();
        for (place, side) in sides.into_iter().enumerate() {
            if let Some(side) = side {
                places.push(place);
                there.push(side);
            }
        }
        let times = measure(&mut there, self.rounds, &self.clock, &mut self.caches)?;
        let mut figures = [None; COUNT];
        for (place, time) in places.into_iter().zip(times) {
            figures[place] = Some(time);
        }
        Ok(figures)
    }
}

fn ethernet(frames: &[Vec<u8>]) -> Packets<'_> {
    Packets { frames, header: ETHERNET }
}

fn virtio(frames: &[Vec<u8>]) -> Packets<'_> {
    Packets { frames, header: OFFSET }
}
