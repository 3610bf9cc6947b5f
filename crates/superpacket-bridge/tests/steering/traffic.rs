//! Flows of numbered packets through a bridge of two memory ports, and a record of those that
//! arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use superpacket::packet::{FlowHash, Layer, RxChecksum};
use superpacket_bridge::Bridge;
use superpacket_bridge::report::{PortStats, SteeringReport};
use superpacket_bridge::settings::{BridgeSettings, InPlace, NamedSettings, PortSettings};
use superpacket_model::open;
use superpacket_port::{Outgoing, Port, PortSpec, TxBatch};
use superpacket_steer::{Cpu, CpuMask, FlowTuple, Toeplitz};
use superpacket_traffic::frame::Frame;

/// Packets sent at once.
const BURST: usize = 128;

/// Offsets of the source port and the number in a frame.
const SOURCE_PORT: usize = 34;
const NUMBER: usize = 42;

/// Returns a frame of a flow, with its number.
pub fn frame(flow: u16, number: u32) -> Vec<u8> {
    let mut bytes = Frame::udp4(18).to_bytes();
    bytes[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&(1000 + flow).to_be_bytes());
    bytes[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Returns the flow and the number of a frame.
pub fn read(bytes: &[u8]) -> (u16, u32) {
    let port = u16::from_be_bytes([bytes[SOURCE_PORT], bytes[SOURCE_PORT + 1]]);
    let number = bytes[NUMBER..NUMBER + 4].try_into().expect("four bytes");
    (port - 1000, u32::from_be_bytes(number))
}

/// Returns the flow's Toeplitz hash by the published key, as a reader would get it with the
/// packets.
pub fn hash(flow: u16) -> FlowHash {
    let bytes = frame(flow, 0);
    let address = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes");
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Toeplitz::default().hash_flow(&FlowTuple::v4(
        address(26),
        address(30),
        Some([port(34), port(36)]),
    ))
}

/// Returns two CPUs on which workers can run. With only one CPU, prints a message and returns
/// `None`, or fails if the environment variable `CI` is set.
pub fn two_cpus() -> Option<[Cpu; 2]> {
    let usable = superpacket_bridge::settings::UsableCpus::read().mask();
    let mut cpus = usable.iter();
    match (cpus.next(), cpus.next()) {
        (Some(first), Some(second)) => Some([first, second]),
        _ => {
            assert!(std::env::var_os("CI").is_none(), "steering needs two CPUs");
            eprintln!("SKIPPED: this machine lets the process use one CPU only");
            None
        }
    }
}

/// Returns a mask of these CPUs.
pub fn mask(cpus: &[Cpu]) -> CpuMask {
    cpus.iter().copied().collect()
}

/// A bridge between two memory links, whose other ends belong to the test.
pub struct Joined {
    pub bridge: Bridge,
    pub names: [String; 2],
    ends: Option<[Box<dyn Port>; 2]>,
}

/// The packets that arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrived {
    pub packets: u64,
    /// Number of packets that arrived after one of their flow with a higher number.
    pub overtaken: u64,
}

/// Traffic that runs until it is stopped.
pub struct Running {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Arrived>,
}

impl Joined {
    /// Joins links of this name, with settings changed before the start. Packets are received by
    /// the port `input` on the link `NAME-in`.
    pub fn new(name: &str, input: &str, change: impl FnOnce(&mut BridgeSettings)) -> Joined {
        let names = [input.to_owned(), format!("memory:{name}-out?slots=8192")];
        let port = |text: &String| {
            let mut settings = PortSettings::new(text.parse().expect("a port string"));
            // Packets must not be merged.
            settings.features = settings
                .features
                .without(superpacket_port::features::Feature::GenericReceiveOffload);
            // Packets are steered even at a low rate.
            settings.steering.in_place = Some(InPlace::NEVER);
            settings
        };
        let mut settings = BridgeSettings {
            ports: names.iter().map(port).collect(),
            threads: 1,
            ..BridgeSettings::default()
        };
        change(&mut settings);
        let bridge = Bridge::start(settings).expect("memory ports need nothing");
        let end = |side| {
            open(
                &format!("memory:{name}-{side}?slots=8192")
                    .parse::<PortSpec>()
                    .expect("a port string"),
            )
            .expect("the other end")
        };
        Joined { bridge, names, ends: Some(["in", "out"].map(end)) }
    }

    /// Starts to send packets of this many flows, at most `rate` per second.
    pub fn run(&mut self, flows: u16, rate: Arc<AtomicU32>) -> Running {
        let [mut from, mut to] = self.ends.take().expect("runs once");
        let stop = Arc::new(AtomicBool::new(false));
        let mut out = from.transmitter().expect("an end");
        let stopped = stop.clone();
        let sender = std::thread::spawn(move || {
            let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
            let mut numbers = vec![0u32; usize::from(flows)];
            let (mut sent, mut turn, start) = (0u64, 0, Instant::now());
            let mut due = start;
            while !stopped.load(Ordering::Relaxed) {
                outgoing.clear();
                batch.clear();
                for _ in 0..BURST {
                    let number = &mut numbers[turn];
                    *number += 1;
                    batch.push_bytes(
                        &mut outgoing,
                        &frame(turn as u16, *number),
                        RxChecksum::None,
                        None,
                        Layer::Ethernet,
                    );
                    turn = (turn + 1) % usize::from(flows);
                }
                let mut done = 0;
                while done < BURST && !stopped.load(Ordering::Relaxed) {
                    done += out.transmit(&outgoing, &batch, done).sent;
                    if done < BURST {
                        std::thread::yield_now();
                    }
                }
                sent += done as u64;
                due += Duration::from_secs(1) * BURST as u32 / rate.load(Ordering::Relaxed).max(1);
                match due.checked_duration_since(Instant::now()) {
                    Some(wait) => std::thread::sleep(wait),
                    // Missed packets are not sent later.
                    None => due = Instant::now(),
                }
            }
            // The port stays open until all packets have arrived.
            drop((out, from));
            sent
        });
        let stopped = stop.clone();
        let receiver = std::thread::spawn(move || {
            let mut inputs = to.receivers();
            let (mut packets, mut last) = (Vec::new(), vec![0u32; usize::from(flows)]);
            let mut arrived = Arrived::default();
            let mut quiet = Instant::now();
            while !stopped.load(Ordering::Relaxed) || quiet.elapsed() < Duration::from_millis(200) {
                for input in &mut inputs {
                    let _ = input.poll(&mut packets, 512);
                }
                if packets.is_empty() {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                quiet = Instant::now();
                for packet in packets.drain(..) {
                    let (flow, number) =
                        read(packet.buffers().next().expect("one at least").bytes());
                    let last = &mut last[usize::from(flow)];
                    arrived.packets += 1;
                    arrived.overtaken += u64::from(number < *last);
                    *last = number.max(*last);
                }
                inputs.iter_mut().for_each(|input| input.give_back());
            }
            drop(to);
            arrived
        });
        Running { stop, sender, receiver }
    }

    /// Returns the counters of the receiving port.
    pub fn input(&self) -> PortStats {
        self.bridge
            .stats()
            .into_iter()
            .find(|stats| stats.port == self.names[0])
            .expect("the port is there")
    }

    /// Sets the mask of the receiving port.
    pub fn steer(&self, mask: &CpuMask) {
        self.bridge.set_rps_cpus(&self.names[0], None, mask).expect("it can be set");
    }

    /// Changes a steering setting of the bridge.
    pub fn set(&self, name: &str, value: &str) -> SteeringReport {
        self.bridge
            .change_steering_settings(|settings| settings.set(name, value))
            .expect("it can be set")
    }

    /// Returns the number of packets that the workers of these CPUs processed.
    pub fn processed(&self, cpus: &[Cpu]) -> Vec<u64> {
        let workers = self.bridge.steering().workers;
        let of = |cpu: &Cpu| {
            workers
                .iter()
                .find(|worker| worker.cpu == cpu.number())
                .map_or(0, |worker| worker.processed)
        };
        cpus.iter().map(of).collect()
    }
}

impl Running {
    /// Stops, and returns how many packets were sent, and those that arrived.
    pub fn stop(self) -> (u64, Arrived) {
        self.stop.store(true, Ordering::Relaxed);
        (self.sender.join().expect("no panic"), self.receiver.join().expect("no panic"))
    }
}

/// A generator of pseudo-random numbers, the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
