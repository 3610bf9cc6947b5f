//! Time per frame of a vhost-user port, in nanoseconds: the ring alone, frames that a guest sends,
//! and frames that it receives. The guest prepares its rings outside of the measured time.
//!
//! `cargo bench -p superpacket-port --bench vhost`

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use superpacket::packet::{Layer, RxChecksum};
use superpacket_front_end::{DriverRing, Guest, GuestSettings, Memory, USER, feature};
use superpacket_port::vhost::{
    Direction, GuestMemory, MemoryTrust, RegionPlace, RingPlace, SplitRing,
};
use superpacket_port::{Outgoing, TxBatch, open};

/// Number of frames per call.
const BATCH: u16 = 256;
/// Number of calls that are measured.
const CALLS: usize = 2000;

/// Measures `CALLS` calls of `work`, each after `prepare`, and prints the fastest and the median.
fn measure<T>(
    what: &str,
    state: &mut T,
    mut prepare: impl FnMut(&mut T),
    mut work: impl FnMut(&mut T),
) {
    let mut times: Vec<Duration> = (0..CALLS)
        .map(|_| {
            prepare(state);
            let start = Instant::now();
            work(state);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let per_frame = |time: Duration| time.as_nanos() as f64 / f64::from(BATCH);
    println!(
        "{what:32} {:6.1} ns per frame at best, {:6.1} in the median",
        per_frame(times[0]),
        per_frame(times[CALLS / 2])
    );
}

/// The ring alone: buffers of one descriptor are taken and returned, without their bytes.
fn ring() {
    let memory = Memory::new(&[(0, 0x10_0000)]);
    let mut driver = DriverRing::new(0x1000, BATCH);
    while driver.offer(&memory, &[(0x8_0000, 1526)], false).is_some() {}
    let region = &memory.regions[0];
    let [guest_address, length, user_address, offset] = region.description();
    let place = RegionPlace { guest_address, user_address, length, offset };
    let mapped = GuestMemory::default()
        .with_region(place, &region.file, MemoryTrust::Sealed)
        .expect("it maps");
    let place = RingPlace {
        size: u32::from(BATCH),
        descriptors: driver.descriptors + USER,
        available: driver.available + USER,
        used: driver.used + USER,
    };
    let mut device = SplitRing::new(Arc::new(mapped), place, Direction::FromGuest, true)
        .expect("the ring is in the memory");
    let mut index = 0_u16;
    let more = |_: &mut SplitRing| {
        // The same descriptors again.
        index = index.wrapping_add(BATCH);
        driver.set_available_index(&memory, index);
    };
    measure("the ring", &mut device, more, |device| {
        for _ in 0..BATCH {
            device.begin();
            let taken = device.take().expect("no fault").expect("there is one");
            device.give_back(black_box(taken).head, 0);
        }
        black_box(device.publish());
    });
}

fn settings() -> GuestSettings {
    // The header of 12 bytes, as most guests have it.
    let tunnels = [feature::GUEST_UDP_TUNNEL_GSO, feature::HOST_UDP_TUNNEL_GSO];
    let features = tunnels.iter().fold(u64::MAX, |all, tunnel| all & !(1 << tunnel));
    GuestSettings { features, ring: BATCH, ..GuestSettings::default() }
}

fn port(length: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let text = format!("vhost:{}", path.display());
    let mut port = open(&text.parse().expect("well formed")).expect("it opens");
    let mut receiver = port.receivers().remove(0);
    let mut transmitter = port.transmitter().expect("an end");
    let mut guest = Guest::connect(&path, settings()).expect("it is accepted");
    for queue in &guest.queues {
        // The guest asks for no notifications.
        queue.ring.set_used_event(&guest.memory, u16::MAX / 2);
    }
    let queue = &mut guest.queues[1];
    let bytes = 12 + length as u32;
    for buffer in 0..u64::from(BATCH) {
        let at = queue.buffers + buffer * 2048;
        queue.ring.offer(&guest.memory, &[(at, bytes)], false).expect("there is room");
    }
    let mut packets = Vec::with_capacity(512);
    let mut index = 0_u16;
    let more = |packets: &mut Vec<_>| {
        packets.clear();
        index = index.wrapping_add(BATCH);
        let ring = &guest.queues[1].ring;
        ring.set_used_event(&guest.memory, index.wrapping_add(1 << 15));
        ring.set_available_index(&guest.memory, index);
    };
    measure(&format!("{length} bytes from the guest"), &mut packets, more, |packets| {
        while packets.len() < usize::from(BATCH) {
            receiver.poll(packets, 512).expect("the guest is there");
        }
    });
    drop(packets);
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    let frame = vec![7; length];
    for _ in 0..BATCH {
        batch.push_bytes(&mut outgoing, &frame, RxChecksum::None, None, Layer::Ethernet);
    }
    let mut index = BATCH;
    let more = |_: &mut ()| {
        let ring = &guest.queues[0].ring;
        ring.set_used_event(&guest.memory, index.wrapping_add(1 << 15));
        ring.set_available_index(&guest.memory, index);
        index = index.wrapping_add(BATCH);
    };
    measure(&format!("{length} bytes to the guest"), &mut (), more, |()| {
        let progress = transmitter.transmit(&outgoing, &batch, 0);
        assert_eq!(progress.sent, usize::from(BATCH));
    });
}

fn main() {
    ring();
    for length in [64, 1500] {
        port(length);
    }
}
