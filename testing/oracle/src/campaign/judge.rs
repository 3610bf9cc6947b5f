//! Compares the packets that come back from an engine with those that it received.

use std::collections::HashMap;
use std::rc::Rc;

use superpacket::memory::Memory;
use superpacket::segment::{ChecksumForm, ChecksumOutput, Segment};
use superpacket::{Layer, RxChecksum, SegmentOptions, Segmenter, SuperPacket};
use superpacket_traffic::check::{self, Expect};

use super::NumberedBuffer;
use super::pool::{self, PollUse, complete};
use crate::frames::hexadecimal;

/// Super-packets that an engine receives: for each, the positions of its frames in the order of
/// arrival, and its bytes.
#[derive(Default)]
pub struct Members(pub Vec<(Vec<usize>, Rc<Vec<u8>>)>);

/// Returns whether two slices have the same bytes. Slices at one address need no comparison, since
/// shared bytes cannot be written to.
fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && (std::ptr::eq(left, right) || left == right)
}

/// Returns the positions (in the order of arrival) of the frames whose buffers a packet contains.
pub fn places(packet: &SuperPacket<'_, NumberedBuffer>) -> Vec<usize> {
    let buffers = packet.pieces().iter().filter_map(|piece| piece.buffer());
    let mut places: Vec<_> = buffers.map(|buffer| buffer.0).collect();
    places.dedup();
    places
}

/// Checks the packets that an engine returns for a poll, and remembers which frames have come back.
#[derive(Default)]
pub struct Judge {
    segmenter: Segmenter,
    /// Whether the frame at each position in the order of arrival has come back.
    returned: Vec<bool>,
    /// For each flow, the position of the frame that came back last, plus one.
    latest: Vec<usize>,
    places: Vec<usize>,
    numbers: Vec<usize>,
    emitted: Vec<usize>,
    /// Numbers of the flows, as generated, of which a frame left the engine behind a later frame.
    overtaken: Vec<usize>,
    /// Number of packets of this poll that the packets of LRO represent, absorbed ACKs included.
    pub accounted: u64,
    /// Segments whose IPv4 identifications count up although those of the frames stay the same.
    pub renumbered: u64,
    pub super_packets: u64,
    pub merged: u64,
    pub problem: Option<String>,
}

impl Judge {
    pub fn begin(&mut self, used: &PollUse<'_>) {
        self.returned.clear();
        self.returned.resize(used.order.len(), false);
        self.latest.clear();
        self.latest.resize(used.frames.len(), 0);
        self.emitted.clear();
        self.overtaken.clear();
        (self.super_packets, self.merged, self.accounted, self.renumbered) = (0, 0, 0, 0);
    }

    pub fn fail(&mut self, text: impl FnOnce() -> String) {
        if self.problem.is_none() {
            self.problem = Some(text());
        }
    }

    /// Checks a packet that left the engine.
    ///
    /// `number` returns for a buffer the position of its frame in the order of arrival, or if
    /// `members` is `Some`, the index of its super-packet in `members`.
    pub fn check_packet<B, M: Memory<B>>(
        &mut self,
        used: &PollUse<'_>,
        packet: &SuperPacket<'_, B, M>,
        number: impl Fn(&B) -> usize,
        members: Option<&Members>,
    ) {
        let metadata = packet.metadata;
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        numbers.extend(packet.pieces().iter().filter_map(|piece| piece.buffer().map(&number)));
        numbers.dedup();
        if numbers.len() != metadata.packets as usize {
            self.fail(|| format!("{numbers:?} in a packet that says {}", metadata.packets));
        }
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        match members {
            None => places.extend_from_slice(&numbers),
            Some(Members(members)) => {
                places.extend(numbers.iter().flat_map(|&number| &members[number].0))
            }
        }
        let frame = |place: usize| &used.frames[used.order[place]];
        for &place in &places {
            if frame(place).vlan != metadata.vlan || frame(place).layer != metadata.layer {
                self.fail(|| {
                    format!(
                        "frame {place}: {:?} {:?} became {metadata:?}",
                        frame(place).vlan,
                        frame(place).layer
                    )
                });
            }
            self.record_return(used, place);
        }
        if let [number] = numbers[..] {
            let was =
                members.map_or_else(|| &frame(number).bytes, |Members(members)| &members[number].1);
            if !packet.contiguous().is_some_and(|bytes| is_same(bytes, was)) {
                self.fail(|| format!("{places:?}, alone, is not what it was"));
            }
        }
        if places.len() > 1 {
            self.compare_segments(used, packet, &places, members.is_some());
        }
        (self.numbers, self.places) = (numbers, places);
    }

    /// Records that a frame has come back, and whether a later frame of its flow came back before.
    fn record_return(&mut self, used: &PollUse<'_>, place: usize) {
        if std::mem::replace(&mut self.returned[place], true) {
            self.fail(|| format!("frame {place} came back twice"));
        }
        // Positions are stored plus one, so that 0 means that no frame has come back.
        let flow = used.frames[used.order[place]].flow;
        if std::mem::replace(&mut self.latest[flow], place + 1) > place + 1 {
            self.overtaken.push(flow);
        }
        self.emitted.push(place);
    }

    /// Records that a frame has come back, alone or as the segment of a super-packet.
    pub fn record_found(&mut self, used: &PollUse<'_>, place: usize, merged: bool) {
        self.merged += u64::from(merged);
        self.record_return(used, place);
    }

    /// Excludes a frame that is not given to the engine, so that it need not come back.
    pub fn skip(&mut self, place: usize) {
        self.returned[place] = true;
    }

    /// Checks a packet whose bytes the engine copied. The packet's frames are found by comparing
    /// bytes.
    pub fn check_copied(&mut self, used: &PollUse<'_>, packet: &SuperPacket<'_, NumberedBuffer>) {
        let metadata = packet.metadata;
        let merged = metadata.packets > 1;
        let mut segments = Vec::new();
        if merged {
            self.super_packets += 1;
            let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
            let sink = |segment: Segment<'_, _>| {
                let mut bytes = Vec::new();
                segment.copy_to(&mut bytes);
                segments.push(bytes);
            };
            if let Err(error) = self.segmenter.segment(packet, &options, sink) {
                self.fail(|| format!("{metadata:?} cannot be cut: {error}"));
            }
        } else {
            let mut bytes = Vec::new();
            packet.copy_to(&mut bytes);
            segments.push(bytes);
        }
        let partial = metadata.gso.is_some_and(|gso| gso.checksum == ChecksumForm::Partial);
        for segment in segments {
            let wanted = |place: &usize| {
                let frame = &used.frames[used.order[*place]];
                let same_form = !merged || frame.is_partial() == partial;
                !self.returned[*place]
                    && *frame.bytes == segment
                    && (frame.vlan, frame.layer) == (metadata.vlan, metadata.layer)
                    && same_form
            };
            match (0..used.order.len()).find(wanted) {
                Some(place) => self.record_found(used, place, merged),
                None => {
                    self.fail(|| format!("{metadata:?}: no frame is {}", hexadecimal(&segment)))
                }
            }
        }
    }

    /// Checks a packet that left an engine with LRO.
    pub fn check_lro(&mut self, used: &PollUse<'_>, packet: &SuperPacket<'_, NumberedBuffer>) {
        let metadata = packet.metadata;
        self.accounted += u64::from(metadata.packets);
        let places = places(packet);
        let frame = |place: usize| &used.frames[used.order[place]];
        places.iter().for_each(|&place| self.record_return(used, place));
        if metadata.packets == 1 {
            let same = matches!(places[..], [place] if packet.contiguous().is_some_and(|bytes| is_same(bytes, &frame(place).bytes)));
            if !same {
                self.fail(|| format!("{places:?}, alone, is not what it was"));
            }
            return;
        }
        self.super_packets += 1;
        self.merged += u64::from(metadata.packets);
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        let at_ip = metadata.layer == Layer::Ip;
        let expect = Expect {
            starts_at_ip: at_ip,
            partial: matches!(metadata.checksum, RxChecksum::Partial { .. }),
            big: true,
            ..Expect::default()
        };
        if let Err(problem) = check::frame(&bytes, &expect) {
            self.fail(|| {
                format!("{places:?} became a packet with {problem}: {}", hexadecimal(&bytes))
            });
        }
        let payload: Vec<u8> = places
            .iter()
            .flat_map(|&place| check::payload(&frame(place).bytes, at_ip).unwrap_or(&[]))
            .copied()
            .collect();
        if check::payload(&bytes, at_ip) != Some(&payload[..]) {
            self.fail(|| format!("{places:?} became other payload: {}", hexadecimal(&bytes)));
        }
        let flow = check::flow_key(&bytes, at_ip);
        if let Some(place) = places
            .iter()
            .find(|&&place| frame(place).flow_key().0 != flow || frame(place).vlan != metadata.vlan)
        {
            self.fail(|| format!("frame {place} is of another flow than {places:?}"));
        }
    }

    /// Checks at the end of a poll of LRO that all frames are accounted for. Absorbed ACKs leave in
    /// no buffer, so frames are only counted.
    pub fn end_lro(&mut self, used: &PollUse<'_>) {
        let (accounted, frames) = (self.accounted, used.order.len() as u64);
        if accounted == frames {
            self.returned.fill(true);
        } else {
            self.fail(|| format!("{accounted} of {frames} frames are accounted for"));
        }
    }

    /// Segments a merged packet, and compares the segments with the original frames.
    ///
    /// `again` tells that the packet consists of super-packets that the engine received, which do
    /// not say whether the checksums of their frames were partial. All segments then have complete
    /// checksums.
    fn compare_segments<B, M: Memory<B>>(
        &mut self,
        used: &PollUse<'_>,
        packet: &SuperPacket<'_, B, M>,
        places: &[usize],
        again: bool,
    ) {
        self.super_packets += 1;
        self.merged += places.len() as u64;
        let partial = packet.metadata.gso.is_some_and(|gso| gso.checksum == ChecksumForm::Partial);
        let (mut different, mut count) = (None, 0);
        let sink = |segment: Segment<'_, _>| {
            let Some(frame) = places.get(count).map(|&place| &used.frames[used.order[place]])
            else {
                count += 1;
                return;
            };
            let completed = if again && frame.is_partial() {
                complete(&frame.bytes, frame.checksum, frame.layer)
            } else {
                None
            };
            let mut rest = completed.as_ref().unwrap_or(&frame.bytes).as_slice();
            let mut same = again || frame.is_partial() == partial;
            for part in std::iter::once(segment.header()).chain(segment.payload()) {
                same &= rest.get(..part.len()).is_some_and(|rest| is_same(part, rest));
                rest = rest.get(part.len()..).unwrap_or(&[]);
            }
            if (!same || !rest.is_empty()) && different.is_none() {
                let mut bytes = Vec::new();
                segment.copy_to(&mut bytes);
                different = Some((places[count], bytes));
            }
            count += 1;
        };
        let form = if again { ChecksumOutput::Full } else { ChecksumOutput::AsMerged };
        let options = SegmentOptions::default().with_checksum(form);
        let result = self.segmenter.segment(packet, &options, sink);
        if let Err(error) = result {
            self.fail(|| format!("{places:?} merged, and cannot be cut: {error}"));
        } else if let Some((place, bytes)) = different {
            let was = &used.frames[used.order[place]];
            self.fail(|| {
                format!(
                    "frame {place} of {places:?}: {} {:?} came back as {}",
                    hexadecimal(&was.bytes),
                    was.checksum,
                    hexadecimal(&bytes)
                )
            });
        } else if count != places.len() {
            self.fail(|| format!("{places:?} became {count} segments"));
        }
    }

    pub fn end(&mut self, used: &PollUse<'_>) {
        if let Some(missing) = self.returned.iter().position(|returned| !returned) {
            self.fail(|| format!("frame {missing} never came back"));
        }
        if !self.overtaken.is_empty()
            && let Some((first, second)) = self.overtaking(used)
        {
            self.fail(|| format!("frame {second} left before frame {first} of its flow"));
        }
    }

    /// Returns the positions of two frames of one flow that left in another order than they
    /// arrived, the earlier frame first. Flows are determined from the frames' current bytes.
    fn overtaking(&self, used: &PollUse<'_>) -> Option<(usize, usize)> {
        let mut latest: HashMap<pool::PoolFlow, usize> = HashMap::new();
        // A frame that was varied may belong to another flow than the one generated.
        let frame = |place: usize| &used.frames[used.order[place]];
        let suspects = self
            .emitted
            .iter()
            .filter(|&&place| frame(place).damaged || self.overtaken.contains(&frame(place).flow));
        for &place in suspects {
            let latest = latest.entry(frame(place).flow_key()).or_insert(place);
            if *latest > place {
                return Some((place, *latest));
            }
            *latest = place;
        }
        None
    }
}
