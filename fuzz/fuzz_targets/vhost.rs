//! Lets a device use the ring of a guest that writes anything to its memory, also between the
//! device's steps. Whatever the device takes is what a plain reading of the memory finds, and what
//! it writes lies in the buffers that it took.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use superpacket_front_end::{Memory, USER};
use superpacket_port::vhost::{
    Direction, GuestMemory, MemoryTrust, RegionPlace, RingPlace, SplitRing,
};

/// Regions: two that are adjacent for the guest, and one that is not. The ring lies in the first.
const REGIONS: [(u64, u64); 3] = [(0, 0x1000), (0x1000, 0x1000), (0x8000, 0x1000)];
const SIZE: u16 = 8;
const PLACE: RingPlace =
    RingPlace { size: SIZE as u32, descriptors: USER, available: USER + 0x100, used: USER + 0x200 };

static GUEST: LazyLock<(Memory, Arc<GuestMemory>)> = LazyLock::new(|| {
    let memory = Memory::new(&REGIONS);
    let mapped = memory.regions.iter().fold(GuestMemory::default(), |mapped, region| {
        let [guest_address, length, user_address, offset] = region.description();
        let place = RegionPlace { guest_address, user_address, length, offset };
        mapped.with_region(place, &region.file, MemoryTrust::Sealed).expect("maps")
    });
    (memory, Arc::new(mapped))
});

/// The chain that a plain reading of the memory finds at a head, as parts; `None` if it breaks a
/// rule.
fn chain(memory: &Memory, head: u16, direction: Direction) -> Option<Vec<(u64, usize)>> {
    let (table, mut parts, mut index) = (memory.read(0, 16 * usize::from(SIZE)), Vec::new(), head);
    for _ in 0..SIZE {
        let descriptor = table.get(16 * usize::from(index)..)?.first_chunk::<16>()?;
        let half = |at: usize| u16::from_le_bytes([descriptor[at], descriptor[at + 1]]);
        let address = u64::from_le_bytes(descriptor[..8].try_into().expect("8 bytes"));
        let length = u64::from(half(10)) << 16 | u64::from(half(8));
        let (flags, next) = (half(12), half(14));
        if flags & 4 != 0 || (flags & 2 != 0) != (direction == Direction::ToGuest) {
            return None;
        }
        let (mut at, mut left) = (address, length);
        while left != 0 {
            let (start, size) = REGIONS
                .into_iter()
                .find(|(start, size)| at.checked_sub(*start).is_some_and(|into| into < *size))?;
            let some = left.min(start + size - at);
            parts.push((at, some as usize));
            (at, left) = (at + some, left - some);
        }
        if flags & 1 == 0 {
            return Some(parts);
        }
        index = next;
    }
    None
}

/// Lets the guest write to the first 1,024 bytes of its memory: place and bytes from the input.
fn change<'a>(memory: &Memory, input: &'a [u8]) -> &'a [u8] {
    let [low, high, length, rest @ ..] = input else { return &[] };
    let (bytes, rest) = rest.split_at(usize::from(*length % 64).min(rest.len()));
    memory.write(u64::from(u16::from_le_bytes([*low, *high]) % 1024), bytes);
    rest
}

fuzz_target!(|input: &[u8]| {
    let [choice, input @ ..] = input else { return };
    let (memory, mapped) = &*GUEST;
    let (first, mut input) = input.split_at(input.len().min(0x250));
    let mut start = vec![0; 0x400];
    start[..first.len()].copy_from_slice(first);
    memory.write(0, &start);
    let direction = if choice & 1 == 0 { Direction::FromGuest } else { Direction::ToGuest };
    let mut ring = SplitRing::new(Arc::clone(mapped), PLACE, direction, choice & 2 != 0)
        .expect("the ring lies in the memory");
    for step in 0..64_u8 {
        ring.begin();
        let index = memory.read_u16(0x102);
        let next = ring.next();
        let head = memory.read_u16(0x104 + 2 * u64::from(next % SIZE));
        let expected = chain(memory, head, direction);
        let taken = match ring.take() {
            Err(_) => {
                assert!(index.wrapping_sub(next) > SIZE || expected.is_none());
                return;
            }
            Ok(None) => {
                assert_eq!(index, next);
                let _ = ring.publish();
                match ring.ask_for_kicks() {
                    Ok(more) => assert!(!more),
                    Err(_) => return,
                }
                if input.is_empty() {
                    return;
                }
                input = change(memory, input);
                continue;
            }
            Ok(Some(taken)) => taken,
        };
        let parts = expected.expect("what is taken keeps to the rules");
        assert_eq!(taken.head, head);
        assert_eq!(taken.length, parts.iter().map(|part| part.1).sum::<usize>());
        // The guest changes the descriptors only after they were read.
        input = change(memory, input);
        if direction == Direction::FromGuest {
            let mut copy = vec![0; taken.length.min(0x2000)];
            assert_eq!(ring.copy_to(&mut copy), copy.len());
            let plain = parts.iter().flat_map(|part| memory.read(part.0, part.1));
            assert!(copy.iter().copied().eq(plain.take(copy.len())));
        } else {
            // Buffers away from the ring, which others may read.
            let written = vec![step; taken.length.min(0x1000)];
            let before = memory.read(0x8000, 0x1000);
            ring.write(&written);
            let after = memory.read(0x8000, 0x1000);
            let is_in = |at: u64| parts.iter().any(|part| at.wrapping_sub(part.0) < part.1 as u64);
            for (place, (before, after)) in before.iter().zip(&after).enumerate() {
                assert!(before == after || is_in(0x8000 + place as u64));
            }
        }
        ring.give_back(taken.head, taken.length as u32);
        if step % 3 == 0 {
            let _ = ring.publish();
        }
        if step % 5 == 0 {
            ring.refuse_kicks();
        }
    }
});
