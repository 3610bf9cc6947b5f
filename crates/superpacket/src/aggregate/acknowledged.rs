//! The last acknowledgement of each flow. It identifies a repeated ACK even if no packet of the
//! flow is held.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::Reason;
use crate::wire::{Layout, Protocol, be16, be32, tcp};

const WAYS: usize = 4;

/// Maximum number of sets in the table, which then holds 16,384 flows (four in each set).
const MAX_SETS: u32 = 4096;

/// The acknowledgement number and window of the last packet of a flow that left the aggregator.
#[derive(Clone, Copy, Debug, Default)]
struct LastAck {
    flow: u64,
    acknowledgement: u32,
    window: u16,
}

/// The last acknowledgements of recent flows, in sets of four by hash. The newest flow of a set
/// comes first and the oldest is forgotten.
///
/// Three duplicate ACKs make a sender retransmit (RFC 5681, section 3.2). So a duplicate must not
/// be absorbed, even if the first ACK of its number left alone or in an earlier poll.
#[derive(Debug)]
pub(super) struct Acknowledged {
    sets: Vec<[LastAck; WAYS]>,
}

fn sets(acks: bool, max_flows: u32) -> usize {
    if acks {
        max_flows.saturating_mul(2).clamp(16, MAX_SETS).next_power_of_two() as usize
    } else {
        0
    }
}

impl Acknowledged {
    /// Makes the table for an aggregator of at most `max_flows` flows. It is empty if ACKs are not
    /// aggregated.
    pub(super) fn new(acks: bool, max_flows: u32) -> Self {
        Acknowledged { sets: alloc::vec![[LastAck::default(); WAYS]; sets(acks, max_flows)] }
    }

    /// Makes the table as [`new`](Self::new) does, but returns an error if it cannot be allocated.
    pub(super) fn try_new(acks: bool, max_flows: u32) -> Result<Self, TryReserveError> {
        let (count, mut sets) = (sets(acks, max_flows), Vec::new());
        sets.try_reserve_exact(count)?;
        sets.resize(count, [LastAck::default(); WAYS]);
        Ok(Acknowledged { sets })
    }

    /// Returns whether the table remembers acknowledgements; `false` if ACKs are not aggregated.
    #[inline(always)]
    pub(super) fn is_kept(&self) -> bool {
        !self.sets.is_empty()
    }

    /// Removes the remembered acknowledgements of all flows.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.sets.fill([LastAck::default(); WAYS]);
    }

    #[inline]
    fn set(&self, flow: u64) -> usize {
        (flow >> 40) as usize & self.sets.len().wrapping_sub(1)
    }

    /// Stores the acknowledgement number and window of a TCP packet of this flow that leaves the
    /// aggregator now. Packets of other protocols are ignored.
    #[inline]
    pub(super) fn note(&mut self, flow: u64, header: &[u8], layout: &Layout) {
        let index = self.set(flow);
        if let (Some(set), Protocol::Tcp) = (self.sets.get_mut(index), layout.protocol) {
            let transport = usize::from(layout.transport);
            let way = set.iter().position(|entry| entry.flow == flow).unwrap_or(WAYS - 1);
            set[..=way].rotate_right(1);
            set[0] = LastAck {
                flow,
                acknowledgement: be32(header, transport + tcp::ACKNOWLEDGEMENT),
                window: be16(header, transport + tcp::WINDOW),
            };
        }
    }

    /// Returns the reason why no later ACK may absorb this pure ACK: it acknowledges no new data
    /// compared with the last packet of the flow that left the aggregator. `None` if it
    /// acknowledges new data, or if no acknowledgement of the flow is remembered.
    #[inline]
    pub(super) fn repeated(&self, flow: u64, header: &[u8], layout: &Layout) -> Option<Reason> {
        let entry = self.sets.get(self.set(flow))?.iter().find(|entry| entry.flow == flow)?;
        let transport = usize::from(layout.transport);
        let advance = be32(header, transport + tcp::ACKNOWLEDGEMENT)
            .wrapping_sub(entry.acknowledgement) as i32;
        match advance {
            1.. => None,
            0 if be16(header, transport + tcp::WINDOW) == entry.window => {
                Some(Reason::DuplicateAck)
            }
            0 => Some(Reason::WindowUpdate),
            _ => Some(Reason::AckOlder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::IpVersion;

    const LAYOUT: Layout = Layout {
        outer: None,
        nested: None,
        link: crate::wire::LinkHeader::Plain,
        network: 0,
        version: IpVersion::V4,
        transport: 0,
        protocol: Protocol::Tcp,
        payload: 20,
        pppoe: 0,
        jumbo: false,
        end: 20,
        refusal: None,
    };

    fn header(acknowledgement: u32, window: u16) -> [u8; 20] {
        let mut header = [0; 20];
        header[tcp::ACKNOWLEDGEMENT..][..4].copy_from_slice(&acknowledgement.to_be_bytes());
        header[tcp::WINDOW..][..2].copy_from_slice(&window.to_be_bytes());
        header
    }

    #[test]
    fn what_left_last_is_what_is_compared() {
        let mut memory = Acknowledged::new(true, 8);
        assert_eq!(memory.repeated(1, &header(5, 9), &LAYOUT), None);
        memory.note(1, &header(u32::MAX, 9), &LAYOUT);
        memory.note(2, &header(77, 9), &LAYOUT);
        let repeated =
            |acknowledgement, window| memory.repeated(1, &header(acknowledgement, window), &LAYOUT);
        assert_eq!(repeated(u32::MAX, 9), Some(Reason::DuplicateAck));
        assert_eq!(repeated(u32::MAX, 8), Some(Reason::WindowUpdate));
        assert_eq!(repeated(u32::MAX - 1, 9), Some(Reason::AckOlder));
        assert_eq!(repeated(0, 9), None);
    }

    #[test]
    fn a_full_set_forgets_the_flow_seen_longest_ago() {
        let mut memory = Acknowledged::new(true, 8);
        for flow in [1, 2, 3, 4, 1, 5] {
            memory.note(flow, &header(10, 1), &LAYOUT);
        }
        let known = |flow| memory.repeated(flow, &header(10, 1), &LAYOUT).is_some();
        assert_eq!([1, 2, 3, 4, 5].map(known), [true, false, true, true, true]);
    }

    #[test]
    fn switched_off_it_remembers_nothing() {
        let mut memory = Acknowledged::new(false, 8);
        memory.note(1, &header(10, 1), &LAYOUT);
        assert_eq!(memory.repeated(1, &header(10, 1), &LAYOUT), None);
        assert_eq!(memory.sets.len(), 0);
        assert_eq!(Acknowledged::new(true, u32::MAX).sets.len(), MAX_SETS as usize);
    }
}
