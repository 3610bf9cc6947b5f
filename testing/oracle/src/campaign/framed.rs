//! Checks packets that leave an engine behind a virtio header. Super-packets are segmented as the
//! header says.

use superpacket::virtio::{Header, flags, gso_type};
use superpacket::{BatchAggregator, Framing, Layer, RxChecksum, RxPacket, Segmenter};
use superpacket_traffic::check::{self, Kind};
use superpacket_traffic::random::Random;

use super::judge::Judge;
use super::pool::{PollUse, PoolFrame, complete};

/// The frames of a poll that a device with virtio headers accepts, each with the packet that a
/// reader of the virtio header must reconstruct.
pub struct Framed<'u> {
    used: &'u PollUse<'u>,
    framing: Framing,
    frames: Vec<FramedInput>,
}

/// A frame that an engine for a device with virtio headers receives.
struct FramedInput {
    /// Position of the frame in the order of arrival.
    place: usize,
    bytes: Vec<u8>,
    checksum: RxChecksum,
    /// The frame with its checksum completed, if the checksum is partial and can be completed.
    completed: Option<Vec<u8>>,
    returned: bool,
}

impl<'u> Framed<'u> {
    /// Selects the frames for a device: those without a stripped VLAN tag, which no virtio header
    /// can express. A device for IP packets gets only IP packets.
    pub fn new(used: &'u PollUse<'u>, framing: Framing) -> Self {
        let places = used.order.iter().enumerate();
        let frames = places
            .filter_map(|(place, &frame)| {
                FramedInput::of(place, &used.frames[frame], framing.layer)
            })
            .collect();
        Framed { used, framing, frames }
    }

    /// Gives the selected frames to an engine whose packets leave as slices, and checks the
    /// packets.
    pub fn gathered(mut self, engine: &mut BatchAggregator, judge: &mut Judge) {
        self.skip_others(judge);
        let packets: Vec<_> = self
            .frames
            .iter()
            .map(|frame| {
                let mut packet = RxPacket::new(frame.bytes.clone()).with_checksum(frame.checksum);
                packet.layer = self.framing.layer;
                packet
            })
            .collect();
        engine.poll_gathered(&packets, |slices| {
            self.check_packet(
                &slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>(),
                judge,
            )
        });
    }

    /// Gives the selected frames to an engine that joins them in their own buffers, some of which
    /// have little spare room, and checks the packets.
    pub fn in_place(
        mut self,
        engine: &mut BatchAggregator,
        judge: &mut Judge,
        random: &mut Random,
    ) {
        self.skip_others(judge);
        let length = self.framing.header_length();
        let offset = length + random.below(3) as usize * 16;
        let spare = random.pick(&[0, 3_000, 20_000, 66_000]);
        let mut buffers: Vec<_> = self
            .frames
            .iter()
            .map(|frame| {
                let mut buffer = Vec::with_capacity(offset + frame.bytes.len() + spare);
                buffer.resize(offset, 0xa5);
                buffer.extend_from_slice(&frame.bytes);
                buffer
            })
            .collect();
        // Buffers for joining in place have no metadata, so the engine does not know the checksum
        // state.
        for frame in &mut self.frames {
            (frame.checksum, frame.completed) = (RxChecksum::None, None);
        }
        let written = engine.join_in_place(&mut buffers, offset).expect("there is room").to_vec();
        for index in written {
            self.check_packet(&buffers[index][offset - length..], judge);
        }
    }

    /// Tells the judge that the frames which were not selected are not given to the engine.
    fn skip_others(&self, judge: &mut Judge) {
        for place in 0..self.used.order.len() {
            if !self.frames.iter().any(|frame| frame.place == place) {
                judge.skip(place);
            }
        }
    }

    /// Returns the index of the first frame that has not come back yet and whose expected packet
    /// fulfils `is_it`.
    fn position(&self, is_it: impl Fn(&[u8]) -> bool) -> Option<usize> {
        self.frames.iter().position(|frame| !frame.returned && is_it(frame.expected()))
    }

    /// Finds the frames that a packet and its virtio header represent, and records that they have
    /// come back.
    fn check_packet(&mut self, written: &[u8], judge: &mut Judge) {
        let framing = self.framing;
        let header = match Header::read(written, framing.format, framing.order) {
            Ok(header) => header,
            Err(error) => return judge.fail(|| format!("a header that cannot be read: {error}")),
        };
        let bytes = &written[framing.header_length()..];
        if header.gso_type == gso_type::NONE {
            let Some(frame) =
                self.frames.iter_mut().find(|frame| !frame.returned && frame.bytes == bytes)
            else {
                return judge.fail(|| {
                    format!("a packet that is no frame: {}", crate::frames::hexadecimal(bytes))
                });
            };
            frame.returned = true;
            let said = (header.flags & flags::NEEDS_CSUM != 0)
                .then_some((header.csum_start, header.csum_offset));
            match frame.checksum {
                RxChecksum::Partial { start, offset }
                    if said.is_some_and(|said| said != (start, offset)) =>
                {
                    judge.fail(|| {
                        format!("frame {}: its checksum is said to be at {said:?}", frame.place)
                    });
                }
                RxChecksum::Partial { .. } => {}
                _ if said.is_some() => judge
                    .fail(|| format!("frame {}: its checksum is said to be partial", frame.place)),
                _ => {}
            }
            return judge.record_found(self.used, frame.place, false);
        }
        let mut out = Vec::new();
        let plan = match Segmenter::new().split(framing, written, &mut out) {
            Ok(plan) => plan,
            Err(error) => return judge.fail(|| format!("{header:?} cannot be split: {error}")),
        };
        judge.super_packets += 1;
        let mut first: Option<usize> = None;
        for (index, segment) in out.chunks(plan.segment_length.max(1)).enumerate() {
            let mut found = self.position(|frame| frame == segment);
            if found.is_none()
                && let Some(first) = first
            {
                // No virtio header can express identifications that stay the same, so the receiver
                // counts up.
                let first = identifications(self.frames[first].expected(), framing.layer);
                found = self.position(|frame| {
                    is_renumbered(frame, segment, &first, index as u16, framing.layer)
                });
                judge.renumbered += u64::from(found.is_some());
            }
            first = first.or(found);
            match found.map(|found| &mut self.frames[found]) {
                Some(frame) => {
                    frame.returned = true;
                    judge.record_found(self.used, frame.place, true);
                }
                None => judge.fail(|| {
                    format!(
                        "{header:?}: a segment that is no frame: {}",
                        crate::frames::hexadecimal(segment)
                    )
                }),
            }
        }
    }
}

impl FramedInput {
    /// Returns the packet that a reader of the virtio header must reconstruct from this frame.
    fn expected(&self) -> &[u8] {
        self.completed.as_ref().unwrap_or(&self.bytes)
    }

    fn of(place: usize, frame: &PoolFrame, layer: Layer) -> Option<Self> {
        if frame.vlan.is_some() {
            return None;
        }
        let mut bytes = frame.bytes.to_vec();
        let mut checksum = frame.checksum;
        if (frame.layer, layer) == (Layer::Ethernet, Layer::Ip)
            && matches!(bytes.get(12..14), Some([8, 0] | [0x86, 0xdd]))
        {
            bytes.drain(..14);
            checksum = match checksum {
                RxChecksum::Partial { start, offset } => {
                    RxChecksum::Partial { start: start.checked_sub(14)?, offset }
                }
                checksum => checksum,
            };
        } else if frame.layer != layer {
            return None;
        }
        let completed = matches!(checksum, RxChecksum::Partial { .. })
            .then(|| complete(&bytes, checksum, layer))
            .flatten();
        Some(FramedInput { place, bytes, checksum, completed, returned: false })
    }
}

/// Returns whether a segment equals a frame except for IPv4 identifications.
///
/// `first` has the identifications of the super-packet's first frame. Those of `frame` must be the
/// same, and those of the segment, which is number `index`, must count up from them.
fn is_renumbered(frame: &[u8], segment: &[u8], first: &[u16], index: u16, layer: Layer) -> bool {
    if frame.len() != segment.len() {
        return false;
    }
    let (frame_ids, segment_ids) = (identifications(frame, layer), identifications(segment, layer));
    let is_counted = frame_ids.len() == first.len()
        && frame_ids.iter().zip(&segment_ids).zip(first).all(|((frame, segment), first)| {
            frame == segment || frame == first && *segment == first.wrapping_add(index)
        });
    is_counted && without_identifications(frame, layer) == without_identifications(segment, layer)
}

/// Returns the identifications of a packet's IPv4 headers, the outermost first.
fn identifications(bytes: &[u8], layer: Layer) -> Vec<u16> {
    ipv4_headers(bytes, layer)
        .map(|at| u16::from_be_bytes([bytes[at + 4], bytes[at + 5]]))
        .collect()
}

/// Returns the packet with zeros for the identifications and header checksums of its IPv4 headers.
fn without_identifications(bytes: &[u8], layer: Layer) -> Vec<u8> {
    let mut plain = bytes.to_vec();
    for at in ipv4_headers(bytes, layer) {
        plain[at + 4..at + 6].fill(0);
        plain[at + 10..at + 12].fill(0);
    }
    plain
}

/// Returns the offsets of a packet's IPv4 headers, the outermost first.
fn ipv4_headers(bytes: &[u8], layer: Layer) -> impl Iterator<Item = usize> {
    let layers = check::layers(bytes, layer == Layer::Ip);
    layers.into_iter().filter(|header| header.kind == Kind::Ipv4).map(|header| header.offset)
}

#[cfg(test)]
mod tests {
    use superpacket::{HashKey, Policy};

    use super::super::pool::PollPool;
    use super::*;

    /// Returns the problem that the judge finds in a poll in which `change` is applied to each
    /// packet that leaves the engine; `None` if it finds none.
    fn judged(change: impl Fn(&mut Vec<u8>)) -> Option<String> {
        let mut pool = PollPool::new(3);
        let framing = Framing::TAP;
        let mut engine = BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(1));
        for _ in 0..20 {
            let used = pool.next_use();
            let mut judge = Judge::default();
            judge.begin(&used);
            let mut framed = Framed::new(&used, framing);
            framed.skip_others(&mut judge);
            let packets: Vec<_> = framed.frames.iter().map(|frame| frame.bytes.clone()).collect();
            framed
                .frames
                .iter_mut()
                .for_each(|frame| (frame.checksum, frame.completed) = (RxChecksum::None, None));
            engine.poll_gathered(&packets, |slices| {
                let mut written = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                change(&mut written);
                framed.check_packet(&written, &mut judge);
            });
            judge.end(&used);
            if judge.problem.is_some() {
                return judge.problem;
            }
        }
        None
    }

    #[test]
    fn the_judge_finds_what_a_header_or_a_packet_says_wrong() {
        let merged = |written: &[u8]| written[1] != gso_type::NONE;
        assert_eq!(judged(|_| {}), None);
        let problem = judged(|written| *written.last_mut().expect("a packet") ^= 1);
        assert!(problem.expect("another payload").contains("that is no frame"));
        // Byte 4 of the virtio header belongs to the payload size of segments.
        let problem = judged(|written| written[4] ^= u8::from(merged(written)));
        assert!(problem.expect("another size").contains("a segment that is no frame"));
        // Bytes 28 and 29 are the IPv4 identification behind the virtio header and Ethernet.
        let problem = judged(|written| {
            if merged(written) && written[22..24] == [8, 0] {
                written[29] ^= 0x40;
            }
        });
        assert!(problem.expect("another identification").contains("a segment that is no frame"));
        let problem = judged(|written| written[0] |= u8::from(!merged(written)));
        assert!(problem.expect("a checksum to be filled in").contains("is said to be partial"));
    }
}
