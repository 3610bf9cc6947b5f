//! The memory that holds packets between the two ends of a link.

use superpacket_port::{Buffer, Region};

/// Size of a slot in bytes. A frame of an Ethernet MTU of 1500 takes one slot.
const SLOT: usize = 2048;

/// Memory in slots, used in turn. Packets are copied into the slots, which are then lent as
/// buffers.
#[derive(Debug)]
pub(super) struct Store {
    region: Region,
    /// Index of the slot at which the next search for free slots starts.
    next: usize,
}

impl Store {
    /// Allocates memory for about `packets` packets.
    pub(super) fn new(packets: usize) -> Self {
        // Twice as many slots, because the receiver still holds packets that it has polled.
        // Super-packets take several slots; without a free slot, a packet goes to the heap.
        let slots = (packets * 2).clamp(2 * Region::MAX_RUN, 1 << 15);
        let region = Region::try_heap(slots, SLOT)
            .unwrap_or_else(|| Region::heap(2 * Region::MAX_RUN, SLOT));
        Store { region, next: 0 }
    }

    /// Restarts the search for free slots at the first slot, if that is free, so that slots that
    /// are still in the CPU cache are reused.
    pub(super) fn rewind(&mut self) {
        if self.region.is_free(0, 1) {
            self.next = 0;
        }
    }

    /// Returns a buffer of `length` bytes, from the slots or, if none are free, from the heap.
    /// `write` must fill all of them.
    pub(super) fn place(&mut self, length: usize, mut write: impl FnMut(&mut [u8])) -> Buffer {
        let slots = length.div_ceil(SLOT).max(1);
        if let Some(first) = self.free(slots)
            && let Some(bytes) =
                self.region.run_mut(first, slots).and_then(|run| run.get_mut(..length))
        {
            write(bytes);
            self.next = first + slots;
            if let Some(buffer) = self.region.lend_run(first, slots, 0..length) {
                return buffer;
            }
        }
        // No slots are free, or the packet is longer than a run of slots: allocate on the heap.
        let mut bytes = vec![0; length];
        write(&mut bytes);
        Buffer::from(bytes)
    }

    /// Returns the first of `slots` consecutive free slots, searching from `self.next`.
    fn free(&self, slots: usize) -> Option<usize> {
        if slots > Region::MAX_RUN {
            return None;
        }
        let total = self.region.slots();
        // From the next slot to the end, then from the start up to there.
        for (start, limit) in [(self.next, total), (0, self.next.min(total))] {
            let mut first = start;
            while first + slots <= limit.max(start) {
                match (first..first + slots).rev().find(|&slot| self.region.is_lent(slot)) {
                    None => return Some(first),
                    Some(lent) => first = lent + 1,
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_take_free_slots_in_turn_and_then_the_heap() {
        let mut store = Store::new(1);
        let total = store.region.slots();
        let held = store.place(SLOT * 3 + 1, |bytes| bytes.fill(1));
        assert_eq!((store.next, store.region.lent()), (4, 4));
        let rest: Vec<_> =
            (4..total).map(|index| store.place(SLOT, |bytes| bytes.fill(index as u8))).collect();
        assert_eq!(store.region.lent(), total);
        let heap = store.place(100, |bytes| bytes.fill(7));
        assert_eq!(heap.bytes(), [7; 100]);
        assert_eq!(store.region.lent(), total, "no slot was free");
        drop(held);
        store.rewind();
        let again = store.place(2 * SLOT, |bytes| bytes.fill(9));
        assert_eq!(store.next, 2);
        assert!(rest.iter().zip(4..).all(|(buffer, index)| buffer.bytes() == [index as u8; SLOT]));
        assert_eq!(again.bytes(), [9; 2 * SLOT]);
        let wrapped = store.place(2 * SLOT, |_| ());
        assert_eq!(
            (wrapped.bytes()[0], store.next),
            (1, 4),
            "the place of the first, whose bytes are still there"
        );
        assert_eq!(
            store.place((Region::MAX_RUN + 1) * SLOT, |_| ()).bytes().len(),
            (Region::MAX_RUN + 1) * SLOT
        );
        assert!(store.place(0, |_| ()).bytes().is_empty());
    }
}
