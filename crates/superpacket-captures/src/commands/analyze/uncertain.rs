//! Counts packets whose result may depend on earlier parts of a capture: on what their flows
//! acknowledged there.

use std::collections::HashSet;

use superpacket::wire::{Protocol, parse};

use super::is_pure_ack;
use crate::commands::lanes::{CaptureAggregator, LinkHeader};
use crate::commands::ledger::FlowId;

/// Maximum number of flows per link header whose acknowledgements the engine remembers: its table
/// has 16 sets of 4 flows. The table of LRO holds only 8 flows.
const MAX_REMEMBERED: usize = 64;

/// Number of flows per link header after which the engine remembers no flow of an earlier part: by
/// then every set has been filled anew.
const FORGOTTEN_AFTER: usize = 1024;

/// Maximum link headers with their own state; all further ones share the last.
const MOST_LINKS: usize = 64;

/// Counts packets that LRO with pure ACKs may have treated differently than in the whole capture. A
/// part begins without knowing what its flows acknowledged before.
///
/// These are pure ACKs that are the first packet of their flow in the part and in the packets read
/// before it. Such an ACK may repeat an earlier one, and would then not be absorbed by the next:
/// one merge more or less. It also takes an entry in the engine's table until the flow's next
/// packet or the end of the poll. If a flow finds no entry meanwhile, all packets of that time are
/// counted.
#[derive(Debug, Default)]
pub(super) struct UncertainAcks {
    links: Vec<(LinkHeader, SeenFlows)>,
    counted: u64,
    /// The current poll, from its first uncertain ACK on; `None` if the poll has had none.
    poll: Option<UncertainPoll>,
}

/// The flows seen behind one link header.
#[derive(Debug, Default)]
struct SeenFlows {
    flows: HashSet<FlowId>,
    acks: usize,
}

/// The rest of a poll in which the engine may hold a packet that it would not hold in the whole
/// capture.
#[derive(Clone, Copy, Debug)]
struct UncertainPoll {
    acks: u64,
    packets: u64,
    /// Number of packets that a full table had refused before this poll's first uncertain ACK.
    refused: u64,
}

impl UncertainAcks {
    /// Records a packet before the engine receives it. `counts` is false for packets of an earlier
    /// part.
    #[inline]
    pub(super) fn note_packet(
        &mut self,
        packet: &[u8],
        flow: FlowId,
        link: &LinkHeader,
        counts: bool,
        aggregator: &CaptureAggregator,
    ) {
        if let Some(poll) = &mut self.poll {
            poll.packets += 1;
        }
        let seen = match self.links.iter().position(|(known, _)| known == link) {
            Some(index) => index,
            // Further link headers share the engine's lanes, and the last entry here.
            None if self.links.len() == MOST_LINKS => MOST_LINKS - 1,
            None => {
                self.links.push((*link, SeenFlows::default()));
                self.links.len() - 1
            }
        };
        let Some((_, seen)) = self.links.get_mut(seen) else { return };
        if seen.acks == MAX_REMEMBERED
            || seen.flows.len() == FORGOTTEN_AFTER
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
            seen.acks += 1;
            let new_poll = UncertainPoll { acks: 0, packets: 1, refused: aggregator.refused() };
            self.poll.get_or_insert(new_poll).acks += 1;
        }
    }

    /// Updates the count after the engine has received the packet: counts the packets of a poll
    /// that has ended.
    pub(super) fn update(&mut self, aggregator: &CaptureAggregator) {
        if self.poll.is_some() && aggregator.is_between_polls() {
            self.finish(aggregator);
        }
    }

    /// Ends the current poll, and returns the number of packets that have been counted.
    pub(super) fn finish(&mut self, aggregator: &CaptureAggregator) -> u64 {
        if let Some(poll) = self.poll.take() {
            self.counted +=
                if aggregator.refused() == poll.refused { poll.acks } else { poll.packets };
        }
        self.counted
    }
}
