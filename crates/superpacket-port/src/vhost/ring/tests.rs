//! Rings of well-behaved and of hostile guests.

use superpacket_front_end::{Descriptor, DriverRing, Memory, USER, descriptor_flag};

use super::*;
use crate::vhost::memory::{MemoryTrust, RegionPlace};

const RING: u64 = 0x1000;
const SIZE: u16 = 8;
/// Where buffers lie, in the first region.
const BUFFERS: u64 = 0x4000;

struct Bench {
    memory: Memory,
    driver: DriverRing,
    device: SplitRing,
}

/// A ring of 8 descriptors, in memory of two regions that are adjacent for the guest.
fn bench(direction: Direction, event_index: bool) -> Bench {
    let memory = Memory::new(&[(0, 0x8000), (0x8000, 0x1000)]);
    let driver = DriverRing::new(RING, SIZE);
    let device = SplitRing::new(mapped(&memory), place(&driver), direction, event_index)
        .expect("the ring is in the memory");
    Bench { memory, driver, device }
}

fn mapped(memory: &Memory) -> Arc<GuestMemory> {
    let mut mapped = GuestMemory::default();
    for region in &memory.regions {
        let [guest_address, length, user_address, offset] = region.description();
        let place = RegionPlace { guest_address, user_address, length, offset };
        mapped = mapped.with_region(place, &region.file, MemoryTrust::Sealed).expect("maps");
    }
    Arc::new(mapped)
}

fn place(driver: &DriverRing) -> RingPlace {
    RingPlace {
        size: u32::from(driver.size),
        descriptors: driver.descriptors + USER,
        available: driver.available + USER,
        used: driver.used + USER,
    }
}

impl Bench {
    /// Offers one descriptor as it is, and returns what the device makes of it.
    fn take_raw(&mut self, descriptor: Descriptor) -> Result<Option<TakenBuffer>, RingFault> {
        self.driver.set(&self.memory, 0, descriptor);
        self.driver.offer_head(&self.memory, 0);
        self.device.begin();
        self.device.take()
    }
}

#[test]
fn what_the_guest_sends_is_read_once_and_given_back() {
    let Bench { memory, mut driver, mut device } = bench(Direction::FromGuest, false);
    for round in 0..3 * u32::from(SIZE) {
        let bytes: Vec<u8> = (0..100).map(|byte| byte + round as u8).collect();
        memory.write(BUFFERS, &bytes);
        let parts = [(BUFFERS, 12), (BUFFERS + 12, 0), (BUFFERS + 12, 88)];
        let head = driver.offer(&memory, &parts, false).expect("there is room");
        device.begin();
        assert_eq!(device.take(), Ok(Some(TakenBuffer { head, length: 100 })));
        let mut copy = [0; 200];
        assert_eq!(device.copy_to(&mut copy), 100);
        assert_eq!(copy[..100], bytes);
        assert_eq!(device.copy_to(&mut copy[..50]), 50, "no more than fits");
        assert_eq!(device.take(), Ok(None));
        device.give_back(head, 0);
        assert_eq!(driver.take_used(&memory), None, "it is not published");
        assert!(device.publish(), "the guest wants to be notified");
        assert!(!device.publish(), "there is nothing more");
        assert_eq!(driver.take_used(&memory), Some((head, 0)));
    }
}

#[test]
fn a_frame_is_written_over_several_buffers() {
    let Bench { memory, mut driver, mut device } = bench(Direction::ToGuest, false);
    let heads: Vec<u16> = (0..3)
        .map(|buffer| {
            let at = BUFFERS + 0x100 * buffer;
            driver.offer(&memory, &[(at, 10), (at + 10, 30)], true).expect("there is room")
        })
        .collect();
    device.begin();
    for &head in &heads {
        assert_eq!(device.take(), Ok(Some(TakenBuffer { head, length: 40 })));
    }
    device.put_back(1);
    device.begin();
    assert_eq!(device.take(), Ok(Some(TakenBuffer { head: heads[2], length: 40 })));
    device.put_back(3);
    device.begin();
    for _ in 0..3 {
        device.take().expect("no fault").expect("there is one");
    }
    device.write(&[1; 35]);
    device.write(&[]);
    device.write(&[2; 60]);
    device.write(&[3; 1000]);
    let whole: Vec<u8> =
        (0..3).flat_map(|buffer| memory.read(BUFFERS + 0x100 * buffer, 40)).collect();
    assert_eq!(whole, [vec![1; 35], vec![2; 60], vec![3; 25]].concat());
    assert_eq!(memory.read(BUFFERS + 40, 10), [0; 10], "nothing beyond the buffers");
}

#[test]
fn notifications_are_as_the_guest_asks() {
    for event_index in [false, true] {
        let Bench { memory, mut driver, mut device } = bench(Direction::FromGuest, event_index);
        assert!(driver.is_kick_wanted(&memory, event_index, 0) || event_index);
        let mut give_back = |count: u16| {
            for _ in 0..count {
                let head = driver.offer(&memory, &[(BUFFERS, 20)], false).expect("room");
                device.begin();
                device.take().expect("no fault").expect("there is one");
                device.give_back(head, 0);
            }
            let wanted = device.publish();
            assert_eq!(
                (0..count).filter_map(|_| driver.take_used(&memory)).count(),
                usize::from(count)
            );
            if event_index {
                driver.set_used_event(&memory, driver.next_used + 2);
            } else {
                driver.set_no_interrupt(&memory, true);
            }
            wanted
        };
        assert!(give_back(1));
        assert_eq!([give_back(2), give_back(3)], [false, event_index]);
        assert_eq!(device.ask_for_kicks(), Ok(false));
        assert!(device.asks_for_kicks());
        driver.offer(&memory, &[(BUFFERS, 20)], false);
        assert!(driver.is_kick_wanted(&memory, event_index, 1));
        assert_eq!(device.ask_for_kicks(), Ok(true), "one was offered meanwhile");
        device.begin();
        device.take().expect("no fault").expect("there is one");
        device.refuse_kicks();
        driver.offer(&memory, &[(BUFFERS, 20)], false);
        assert!(!driver.is_kick_wanted(&memory, event_index, 1), "{event_index}");
    }
}

#[test]
fn a_ring_is_taken_over_where_its_used_ring_ends() {
    let Bench { memory, mut driver, mut device } = bench(Direction::FromGuest, true);
    for _ in 0..5 {
        driver.offer(&memory, &[(BUFFERS, 20)], false).expect("there is room");
    }
    for _ in 0..2 {
        device.begin();
        let taken = device.take().expect("no fault").expect("there is one");
        device.give_back(taken.head, 0);
    }
    device.publish();
    // The third was taken by a device that is gone.
    device.begin();
    device.take().expect("no fault").expect("there is one");
    drop(device);
    let mut device =
        SplitRing::new(mapped(&memory), place(&driver), Direction::FromGuest, true).expect("ring");
    assert_eq!(device.next(), 2);
    let again = std::iter::from_fn(|| {
        device.begin();
        device.take().expect("no fault")
    });
    assert_eq!(again.count(), 3);
}

#[test]
fn attack_1_a_buffer_over_two_regions_is_split_or_refused() {
    let mut bench = bench(Direction::FromGuest, false);
    bench.memory.write(0x7ff0, &[7; 32]);
    let over = bench.take_raw(Descriptor { address: 0x7ff0, length: 32, ..Descriptor::default() });
    assert_eq!(over, Ok(Some(TakenBuffer { head: 0, length: 32 })));
    let mut copy = [0; 32];
    assert_eq!((bench.device.copy_to(&mut copy), copy), (32, [7; 32]));
    // The second region ends at 0x9000, and nothing follows.
    let beyond =
        bench.take_raw(Descriptor { address: 0x8ff0, length: 17, ..Descriptor::default() });
    assert_eq!(beyond, Err(RingFault::Address { address: 0x9000, length: 1 }));
}

#[test]
fn attack_5_an_address_outside_the_memory_is_a_fault() {
    for (address, length) in [
        (0x9000, 1),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (0, u32::MAX),
        (0x8000, u32::MAX),
        (USER, 4),
    ] {
        for direction in [Direction::FromGuest, Direction::ToGuest] {
            let flags = if direction == Direction::ToGuest { descriptor_flag::WRITE } else { 0 };
            let taken =
                bench(direction, false).take_raw(Descriptor { address, length, flags, next: 0 });
            assert!(matches!(taken, Err(RingFault::Address { .. })), "{address:#x}: {taken:?}");
        }
    }
    // A buffer of no bytes lies nowhere.
    let mut bench = bench(Direction::FromGuest, false);
    let empty =
        bench.take_raw(Descriptor { address: u64::MAX, length: 0, ..Descriptor::default() });
    assert_eq!(empty, Ok(Some(TakenBuffer { head: 0, length: 0 })));
    assert_eq!(bench.device.copy_to(&mut [0; 8]), 0);
}

#[test]
fn attack_9_loops_and_numbers_out_of_range_are_faults() {
    let chained =
        |next| Descriptor { address: BUFFERS, length: 1, flags: descriptor_flag::NEXT, next };
    assert_eq!(bench(Direction::FromGuest, false).take_raw(chained(0)), Err(RingFault::Loop));
    for next in [SIZE, u16::MAX] {
        let taken = bench(Direction::FromGuest, false).take_raw(chained(next));
        assert_eq!(taken, Err(RingFault::DescriptorIndex { index: next, size: SIZE }));
    }
    let mut bench = bench(Direction::FromGuest, false);
    bench.driver.set(&bench.memory, 1, chained(0));
    assert_eq!(bench.take_raw(chained(1)), Err(RingFault::Loop));
    for head in [SIZE, u16::MAX] {
        let mut bench = super::tests::bench(Direction::FromGuest, false);
        bench.driver.offer_head(&bench.memory, head);
        assert_eq!(
            bench.device.take(),
            Err(RingFault::DescriptorIndex { index: head, size: SIZE })
        );
    }
}

#[test]
fn indirect_descriptors_and_wrong_directions_are_faults() {
    let with = |flags| Descriptor { address: BUFFERS, length: 16, flags, next: 0 };
    for (direction, flags, fault) in [
        (Direction::FromGuest, descriptor_flag::INDIRECT, RingFault::Indirect),
        (Direction::FromGuest, descriptor_flag::WRITE, RingFault::Direction),
        (Direction::ToGuest, 0, RingFault::Direction),
    ] {
        assert_eq!(bench(direction, false).take_raw(with(flags)), Err(fault));
    }
}

#[test]
fn attack_10_sizes_that_no_ring_has_are_refused() {
    let memory = Memory::new(&[(0, 0x10_0000)]);
    let driver = DriverRing::new(RING, SIZE);
    for size in [0, 3, 7, 1 << 16, u32::MAX, 1 << 31] {
        let place = RingPlace { size, ..place(&driver) };
        let made = SplitRing::new(mapped(&memory), place, Direction::FromGuest, false);
        assert_eq!(made.err(), Some(RingError::Size(size)));
    }
}

#[test]
fn attack_10_rings_that_are_not_in_the_memory_are_refused() {
    let Bench { memory, driver, .. } = bench(Direction::FromGuest, false);
    let good = place(&driver);
    let end = USER + 0x9000;
    for place in [
        // The last entry of each would lie beyond the memory's end.
        RingPlace { descriptors: end - 16 * 7, ..good },
        RingPlace { available: end - (6 + 2 * 8) + 2, ..good },
        RingPlace { used: end - (6 + 8 * 8) + 2, ..good },
        // Regions that are adjacent for the guest need not be here.
        RingPlace { descriptors: USER + 0x8000 - 16, ..good },
        RingPlace { used: USER + 0x8000 - 4, ..good },
        RingPlace { descriptors: 0, ..good },
        RingPlace { available: u64::MAX - 1, ..good },
        RingPlace { descriptors: good.descriptors + 8, ..good },
        RingPlace { available: good.available + 1, ..good },
        RingPlace { used: good.used + 2, ..good },
        RingPlace { size: 1 << 15, ..good },
    ] {
        let made = SplitRing::new(mapped(&memory), place, Direction::FromGuest, false);
        assert!(matches!(made, Err(RingError::Address(_))), "{place:x?}");
    }
}

#[test]
fn attack_11_an_index_further_ahead_than_the_ring_is_long_is_a_fault() {
    for ahead in [SIZE + 1, u16::MAX, 1 << 15] {
        let Bench { memory, driver, mut device } = bench(Direction::FromGuest, false);
        driver.set_available_index(&memory, ahead);
        let fault = Err(RingFault::AvailableIndex { ahead, size: SIZE });
        assert_eq!(device.take(), fault);
        assert_eq!(device.ask_for_kicks().map(|_| None), fault);
    }
    let Bench { memory, driver, mut device } = bench(Direction::FromGuest, false);
    driver.set_available_index(&memory, SIZE);
    assert!(device.take().is_ok(), "a full ring is none");
}

#[test]
fn the_work_for_one_frame_is_bounded_whatever_the_ring_is() {
    let memory = Memory::new(&[(0, 0x40_0000)]);
    let mut driver = DriverRing::new(RING, MAX_RING_SIZE);
    let mut device =
        SplitRing::new(mapped(&memory), place(&driver), Direction::ToGuest, false).expect("ring");
    // Each of many buffers is the same chain of 500 descriptors of no bytes.
    for index in 0..500 {
        let flags = descriptor_flag::WRITE | if index < 499 { descriptor_flag::NEXT } else { 0 };
        driver.set(&memory, index, Descriptor { flags, next: index + 1, ..Descriptor::default() });
    }
    (0..100).for_each(|_| driver.offer_head(&memory, 0));
    device.begin();
    assert_eq!(device.take(), Ok(Some(TakenBuffer { head: 0, length: 0 })));
    assert_eq!(device.take(), Ok(Some(TakenBuffer { head: 0, length: 0 })));
    assert_eq!(device.take(), Err(RingFault::Loop));
}

#[test]
fn a_descriptor_that_changes_after_it_was_taken_changes_nothing() {
    let mut bench = bench(Direction::FromGuest, false);
    bench.memory.write(BUFFERS, &[1; 16]);
    let descriptor = Descriptor { address: BUFFERS, length: 16, ..Descriptor::default() };
    assert_eq!(bench.take_raw(descriptor), Ok(Some(TakenBuffer { head: 0, length: 16 })));
    bench.driver.set(
        &bench.memory,
        0,
        Descriptor { address: u64::MAX, length: u32::MAX, flags: u16::MAX, next: u16::MAX },
    );
    let mut copy = [0; 64];
    assert_eq!((bench.device.copy_to(&mut copy), &copy[..16]), (16, &[1; 16][..]));
}

#[test]
fn a_ring_moves_with_its_memory() {
    let Bench { memory, mut driver, mut device } = bench(Direction::FromGuest, false);
    let head = driver.offer(&memory, &[(BUFFERS, 16)], false).expect("there is room");
    device.begin();
    device.take().expect("no fault").expect("there is one");
    device.give_back(head, 0);
    device.publish();
    let mut device = device.moved(mapped(&memory), place(&driver)).expect("the same ring");
    assert_eq!((device.next(), device.take()), (1, Ok(None)));
    let elsewhere = Arc::new(GuestMemory::default());
    assert!(device.moved(elsewhere, place(&driver)).is_err());
}
