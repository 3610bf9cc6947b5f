//! A device in memory.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard};

use superpacket::{Framing, Segmenter};
use superpacket_traffic::check::{Expect, FlowKey, flow_key};
use superpacket_traffic::frame::Frame;
use superpacket_tun::Device;

/// The error number `EINVAL`.
pub const INVALID: i32 = 22;
/// The error number `EIO`: the interface is down.
pub const DOWN: i32 = 5;

/// A function that decides the result of a write, from its number and its bytes.
pub type Verdict = Box<dyn FnMut(usize, &[u8]) -> Option<io::Error> + Send>;

/// A device with prepared reads, which records writes.
#[derive(Default)]
pub struct Memory(Mutex<State>);

#[derive(Default)]
pub struct State {
    pub to_read: VecDeque<io::Result<Vec<u8>>>,
    /// All accepted writes, including headers.
    pub written: Vec<Vec<u8>>,
    /// Maximum number of slices of one write.
    pub most_slices: usize,
    /// Number of attempted writes.
    tried: usize,
    /// Number of times that a reader or writer waited for the device.
    pub waits: usize,
    verdict: Option<Verdict>,
}

impl Memory {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics in a device")
    }

    /// Creates a device, with a function that decides the results of writes.
    pub fn judged(verdict: impl FnMut(usize, &[u8]) -> Option<io::Error> + Send + 'static) -> Self {
        let memory = Memory::default();
        memory.judge(verdict);
        memory
    }

    /// Sets the function that decides the results of writes.
    pub fn judge(&self, verdict: impl FnMut(usize, &[u8]) -> Option<io::Error> + Send + 'static) {
        self.state().verdict = Some(Box::new(verdict));
    }

    /// Accepts all writes from now on.
    pub fn take_all(&self) {
        self.state().verdict = None;
    }

    /// Creates a device from which these packets and errors are read.
    pub fn reading(reads: impl IntoIterator<Item = io::Result<Vec<u8>>>) -> Self {
        let memory = Memory::default();
        memory.state().to_read.extend(reads);
        memory
    }

    /// Returns the written packets, as single packets with complete checksums.
    pub fn packets(&self) -> Vec<Vec<u8>> {
        let (mut segmenter, mut packets) = (Segmenter::new(), Vec::new());
        for written in &self.state().written {
            let mut bytes = Vec::new();
            let plan = segmenter
                .split(Framing::TUN, written, &mut bytes)
                .expect("what is written has a valid header");
            packets.extend(bytes.chunks(plan.segment_length.max(1)).map(<[u8]>::to_vec));
        }
        packets
    }
}

impl Device for Memory {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read =
            self.state().to_read.pop_front().unwrap_or(Err(io::ErrorKind::WouldBlock.into()))?;
        buffer[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let packet: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let mut state = self.state();
        state.most_slices = state.most_slices.max(slices.len());
        let number = state.tried;
        state.tried += 1;
        if let Some(error) = state.verdict.as_mut().and_then(|verdict| verdict(number, &packet)) {
            return Err(error);
        }
        state.written.push(packet);
        Ok(())
    }

    fn wait_readable(&self) -> io::Result<()> {
        self.state().waits += 1;
        // Otherwise the wait would not end.
        Err(io::Error::other("nothing will come"))
    }

    fn wait_writable(&self) -> io::Result<()> {
        self.state().waits += 1;
        Ok(())
    }
}

/// Returns whether a write begins with the header of a super-packet.
pub fn is_super_packet(written: &[u8]) -> bool {
    written[1] != 0
}

/// Returns the packets sorted by flow, each flow's in order.
pub fn by_flow(packets: &[Vec<u8>]) -> BTreeMap<Option<FlowKey>, Vec<Vec<u8>>> {
    let mut flows: BTreeMap<_, Vec<Vec<u8>>> = BTreeMap::new();
    for packet in packets {
        flows.entry(flow_key(packet, true)).or_default().push(packet.clone());
    }
    flows
}

pub const AT_IP: Expect =
    Expect { starts_at_ip: true, trailing: false, partial: false, big: false };

/// Returns 40 packets of one flow.
pub fn run(frame: Frame) -> Vec<Vec<u8>> {
    frame.at_ip().run(40).iter().map(Frame::to_bytes).collect()
}

/// Returns packets of several kinds of flows, alternating.
pub fn in_turn() -> Vec<Vec<u8>> {
    let runs =
        [Frame::tcp4(1, 1348), Frame::tcp6(1, 1328), Frame::udp4(1200), Frame::udp6(1180)].map(run);
    (0..40).flat_map(|index| runs.iter().map(move |run| run[index].clone())).collect()
}
