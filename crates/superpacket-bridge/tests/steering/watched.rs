//! A steered memory port whose consumers record their packets turn by turn, and can be blocked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use superpacket::packet::RxChecksum;
use superpacket::super_packet::SuperPacket;
use superpacket_bridge::Steered;
use superpacket_bridge::consumer::{Consumer, PortEnd};
use superpacket_bridge::settings::{HashFunction, PortSettings, SteeringSettings};
use superpacket_model::open;
use superpacket_port::{Buffer, Port, PortSpec};
use superpacket_steer::{Cpu, ToeplitzKey};

use crate::support::send_as;
use crate::traffic::{frame, mask, read};

/// The packets given to a consumer in one turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The consumer's CPU; `None` for the receiving thread.
    pub cpu: Option<Cpu>,
    /// Flows and numbers, in order.
    pub packets: Vec<(u16, u32)>,
}

/// The state that consumers and the test share.
#[derive(Debug, Default)]
struct Notes {
    /// Blocks all consumers while it is locked.
    gate: Mutex<()>,
    turns: Mutex<Vec<Turn>>,
    /// Packets by consumer.
    counts: Mutex<BTreeMap<Option<Cpu>, u64>>,
}

/// A consumer that records its packets, and waits while the gate is locked.
struct Noting {
    turn: Turn,
    notes: Arc<Notes>,
}

/// A failing test releases the gate, so that its threads end.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Consumer for Noting {
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, _: u64, _: &mut PortEnd<'_>) {
        drop(lock(&self.notes.gate));
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        self.turn.packets.push(read(&bytes));
    }

    fn poll(&mut self, _: u64, _: &mut PortEnd<'_>) -> Option<u64> {
        if !self.turn.packets.is_empty() {
            let packets = std::mem::take(&mut self.turn.packets);
            let count = packets.len() as u64;
            lock(&self.notes.turns).push(Turn { cpu: self.turn.cpu, packets });
            *lock(&self.notes.counts).entry(self.turn.cpu).or_default() += count;
        }
        None
    }
}

/// The port, and the other end of its link.
pub struct Watched {
    pub steered: Steered,
    notes: Arc<Notes>,
    host: RefCell<Box<dyn Port>>,
    sent: Cell<u64>,
}

impl Watched {
    /// Opens a link of this name. Hashes are Toeplitz by the published key, so they are the same in
    /// each run.
    pub fn new(name: &str, options: &str, change: impl FnOnce(&mut SteeringSettings)) -> Watched {
        let spec: PortSpec =
            format!("memory:{name}?slots=8192{options}").parse().expect("a port string");
        let mut settings = SteeringSettings::default();
        settings.hash.function = HashFunction::Toeplitz(ToeplitzKey::MICROSOFT);
        change(&mut settings);
        let notes = Arc::<Notes>::default();
        let shared = notes.clone();
        let make = move |cpu| {
            Box::new(Noting { turn: Turn { cpu, packets: Vec::new() }, notes: shared.clone() })
                as Box<dyn Consumer>
        };
        let steered =
            Steered::start(PortSettings::new(spec), settings, make).expect("memory needs nothing");
        let host = open(&format!("memory:{name}").parse::<PortSpec>().expect("a port string"))
            .expect("the other end");
        Watched { steered, notes, host: RefCell::new(host), sent: Cell::new(0) }
    }

    /// Blocks all consumers until the result is dropped.
    pub fn gate(&self) -> MutexGuard<'_, ()> {
        lock(&self.notes.gate)
    }

    /// Spreads the packets of a receive queue, or of all, over these CPUs.
    pub fn steer(&self, queue: Option<u16>, cpus: &[Cpu]) {
        self.steered.set_rps_cpus(queue, &mask(cpus)).expect("it can be set");
    }

    /// Sends packets, given by flow and number, all at once.
    pub fn send(&self, packets: impl IntoIterator<Item = (u16, u32)>) {
        let frames: Vec<_> =
            packets.into_iter().map(|(flow, number)| frame(flow, number)).collect();
        send_as(&mut **self.host.borrow_mut(), &frames, RxChecksum::None, None);
        self.sent.set(self.sent.get() + frames.len() as u64);
    }

    /// Waits until all sent packets are processed and counted, or dropped.
    pub fn rest(&self) {
        self.wait("all is done with", |watched| {
            let (stats, noted) = (watched.steered.stats(), watched.noted());
            let all = noted.values().sum::<u64>() + stats.drops.values().sum::<u64>();
            let by_workers =
                noted.iter().filter(|(cpu, _)| cpu.is_some()).map(|(_, count)| count).sum();
            (all, watched.processed(), stats.steered)
                == (watched.sent.get(), by_workers, by_workers)
        });
    }

    /// Sends a packet of each flow until all go to the right CPU, so that a change has taken
    /// effect. The packets are not recorded.
    pub fn settle(&self, flows: u16, is_right: impl Fn(u16, Option<Cpu>) -> bool) {
        self.wait("flows go where they should", |watched| {
            watched.send((0..flows).map(|flow| (flow, 0)));
            watched.rest();
            watched
                .turns()
                .iter()
                .all(|turn| turn.packets.iter().all(|&(flow, _)| is_right(flow, turn.cpu)))
        });
    }

    /// Returns the turns of consumers since the last call.
    pub fn turns(&self) -> Vec<Turn> {
        std::mem::take(&mut *lock(&self.notes.turns))
    }

    /// Returns the number of packets that were steered, processed in place, or dropped.
    pub fn dispatched(&self) -> u64 {
        let stats = self.steered.stats();
        stats.steered + stats.in_place + stats.drops.values().sum::<u64>()
    }

    /// Waits until a condition holds.
    pub fn wait(&self, what: &str, holds: impl Fn(&Watched) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{what}: {:?} of {:?}, {:?}",
                self.noted(),
                self.sent,
                self.steered.stats()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the packets given to consumers, by CPU.
    fn noted(&self) -> BTreeMap<Option<Cpu>, u64> {
        lock(&self.notes.counts).clone()
    }

    /// Returns the packets that workers have processed.
    fn processed(&self) -> u64 {
        self.steered.steering().workers.iter().map(|worker| worker.processed).sum()
    }
}
