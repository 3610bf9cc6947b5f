//! What a part of a capture cannot know of the parts before it: what their flows acknowledged.

use std::collections::HashSet;

use superpacket::wire::{Protocol, parse};

use super::is_pure_ack;
use crate::lanes::{Lanes, LinkHeader};
use crate::ledger::Flow;

/// Flows of a link header whose acknowledgements the engine remembers, at most: 16 sets of 4, as
/// its table of LRO holds 8 flows.
const REMEMBERED: usize = 64;

/// Flows of a link header after which nothing from before the part is remembered: by then every
/// set has been filled anew.
const FORGOTTEN: usize = 1024;

/// Link headers that are told apart.
const MOST_LINKS: usize = 64;

/// Counts the packets that LRO with pure ACKs may have treated otherwise than in the whole capture,
/// because the part begins without what flows acknowledged before.
///
/// Concerned are pure ACKs that are the first of their flow that the part, and what is read before
/// it, shows. Such an ACK may repeat an earlier one, and would then not be absorbed by the next:
/// one merge more or less. It also takes a place in the engine's table, until the next packet of
/// its flow or the poll's end; where a flow finds no place meanwhile, all packets of that time are
/// counted.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    links: Vec<(LinkHeader, Seen)>,
    counted: u64,
    /// From the first such ACK of a poll.
    doubtful: Option<Doubtful>,
}

/// The flows of a link header.
#[derive(Debug, Default)]
struct Seen {
    flows: HashSet<Flow>,
    concerned: usize,
}

/// The rest of a poll in which something may be held that would not have been.
#[derive(Clone, Copy, Debug)]
struct Doubtful {
    acks: u64,
    packets: u64,
    /// Packets that had found no place in the table before.
    refused: u64,
}

impl Unknown {
    /// Notes a packet that is given to the engine next; `counts` unless it is of a part before.
    #[inline]
    pub(super) fn arrives(
        &mut self,
        packet: &[u8],
        flow: Flow,
        link: &LinkHeader,
        counts: bool,
        lanes: &Lanes,
    ) {
        if let Some(doubtful) = &mut self.doubtful {
            doubtful.packets += 1;
        }
        let seen = match self.links.iter().position(|(known, _)| known == link) {
            Some(index) => index,
            // Further ones share the engine's lanes, and this.
            None if self.links.len() == MOST_LINKS => MOST_LINKS - 1,
            None => {
                self.links.push((*link, Seen::default()));
                self.links.len() - 1
            }
        };
        let Some((_, seen)) = self.links.get_mut(seen) else { return };
        if seen.concerned == REMEMBERED
            || seen.flows.len() == FORGOTTEN
            || seen.flows.contains(&flow)
        {
            return;
        }
        let Ok(layout) = parse(packet, packet.len(), link.layer()) else { return };
        if layout.protocol != Protocol::Tcp {
            return;
        }
        seen.flows.insert(flow);
        if counts && is_pure_ack(packet, &layout) {
            seen.concerned += 1;
            let begun = Doubtful { acks: 0, packets: 1, refused: lanes.refused() };
            self.doubtful.get_or_insert(begun).acks += 1;
        }
    }

    /// Looks at what the engine holds after it was given a packet.
    pub(super) fn settle(&mut self, lanes: &Lanes) {
        if self.doubtful.is_some() && lanes.is_between_polls() {
            self.finish(lanes);
        }
    }

    /// Returns what was counted, at the part's end.
    pub(super) fn finish(&mut self, lanes: &Lanes) -> u64 {
        if let Some(doubtful) = self.doubtful.take() {
            self.counted +=
                if lanes.refused() == doubtful.refused { doubtful.acks } else { doubtful.packets };
        }
        self.counted
    }
}
