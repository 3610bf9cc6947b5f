//! Packets that leave behind a virtio header: what merged is split by what its header says.

use superpacket::virtio::{Header, flags, gso_type};
use superpacket::{BatchAggregator, Framing, Layer, RxChecksum, RxPacket, Segmenter};
use superpacket_traffic::check::{self, Kind};
use superpacket_traffic::random::Random;

use super::judge::Judge;
use super::pool::{Frame, Use, complete};

/// The frames of a poll that a device with such a header would take, and what a receiver is to get
/// of them.
pub struct Framed<'u> {
    used: &'u Use<'u>,
    framing: Framing,
    taken: Vec<Taken>,
}

/// One frame.
struct Taken {
    /// Its place in the order of arrival.
    place: usize,
    bytes: Vec<u8>,
    checksum: RxChecksum,
    /// The same with a complete checksum, if it is partial and can be completed.
    completed: Option<Vec<u8>>,
    back: bool,
}

impl<'u> Framed<'u> {
    /// Chooses the frames: those without a tag that no header could say; for a device of IP
    /// packets, what is IP.
    pub fn new(used: &'u Use<'u>, framing: Framing) -> Self {
        let places = used.order.iter().enumerate();
        let taken = places
            .filter_map(|(place, &frame)| Taken::of(place, &used.frames[frame], framing.layer))
            .collect();
        Framed { used, framing, taken }
    }

    /// Gives them to an engine whose packets leave in slices.
    pub fn gathered(mut self, engine: &mut BatchAggregator, judge: &mut Judge) {
        self.pass_others(judge);
        let packets: Vec<_> = self
            .taken
            .iter()
            .map(|taken| {
                let mut packet = RxPacket::new(taken.bytes.clone()).with_checksum(taken.checksum);
                packet.layer = self.framing.layer;
                packet
            })
            .collect();
        engine.poll_gathered(&packets, |slices| {
            self.look(
                &slices.iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>(),
                judge,
            )
        });
    }

    /// Gives them to an engine that joins them in their own buffers, some of which have little
    /// room.
    pub fn in_place(
        mut self,
        engine: &mut BatchAggregator,
        judge: &mut Judge,
        random: &mut Random,
    ) {
        self.pass_others(judge);
        let length = self.framing.header_length();
        let offset = length + random.below(3) as usize * 16;
        let spare = random.pick(&[0, 3_000, 20_000, 66_000]);
        let mut buffers: Vec<_> = self
            .taken
            .iter()
            .map(|taken| {
                let mut buffer = Vec::with_capacity(offset + taken.bytes.len() + spare);
                buffer.resize(offset, 0xa5);
                buffer.extend_from_slice(&taken.bytes);
                buffer
            })
            .collect();
        // Nobody says of such a buffer what is known of its checksum.
        for taken in &mut self.taken {
            (taken.checksum, taken.completed) = (RxChecksum::None, None);
        }
        let written = engine.join_in_place(&mut buffers, offset).expect("there is room").to_vec();
        for index in written {
            self.look(&buffers[index][offset - length..], judge);
        }
    }

    /// Frames that are not taken count as returned.
    fn pass_others(&self, judge: &mut Judge) {
        for place in 0..self.used.order.len() {
            if !self.taken.iter().any(|taken| taken.place == place) {
                judge.skip(place);
            }
        }
    }

    /// Finds the frames that one packet and its header stand for.
    fn look(&mut self, written: &[u8], judge: &mut Judge) {
        let framing = self.framing;
        let header = match Header::read(written, framing.format, framing.order) {
            Ok(header) => header,
            Err(error) => return judge.fail(|| format!("a header that cannot be read: {error}")),
        };
        let bytes = &written[framing.header_length()..];
        if header.gso_type == gso_type::NONE {
            let Some(taken) =
                self.taken.iter_mut().find(|taken| !taken.back && taken.bytes == bytes)
            else {
                return judge.fail(|| {
                    format!("a packet that is no frame: {}", crate::frames::hexadecimal(bytes))
                });
            };
            taken.back = true;
            let said = (header.flags & flags::NEEDS_CSUM != 0)
                .then_some((header.csum_start, header.csum_offset));
            match taken.checksum {
                RxChecksum::Partial { start, offset }
                    if said.is_some_and(|said| said != (start, offset)) =>
                {
                    judge.fail(|| {
                        format!("frame {}: its checksum is said to be at {said:?}", taken.place)
                    });
                }
                RxChecksum::Partial { .. } => {}
                _ if said.is_some() => judge
                    .fail(|| format!("frame {}: its checksum is said to be partial", taken.place)),
                _ => {}
            }
            return judge.is_back(self.used, taken.place, false);
        }
        let mut out = Vec::new();
        let plan = match Segmenter::new().split(framing, written, &mut out) {
            Ok(plan) => plan,
            Err(error) => return judge.fail(|| format!("{header:?} cannot be split: {error}")),
        };
        judge.super_packets += 1;
        for segment in out.chunks(plan.segment_length.max(1)) {
            let wanted = |taken: &Taken| !taken.back && taken.wanted() == segment;
            let found = self.taken.iter().position(wanted).or_else(|| {
                // No header says that identifications stay the same: the receiver counts up.
                let plain = without_identifications(segment, framing.layer);
                let same = |taken: &Taken| {
                    !taken.back && without_identifications(taken.wanted(), framing.layer) == plain
                };
                judge.renumbered += 1;
                self.taken.iter().position(same)
            });
            match found.map(|index| &mut self.taken[index]) {
                Some(taken) => {
                    taken.back = true;
                    judge.is_back(self.used, taken.place, true);
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

impl Taken {
    /// What a receiver is to get.
    fn wanted(&self) -> &[u8] {
        self.completed.as_ref().unwrap_or(&self.bytes)
    }

    fn of(place: usize, frame: &Frame, layer: Layer) -> Option<Self> {
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
        Some(Taken { place, bytes, checksum, completed, back: false })
    }
}

/// The packet with identifications of 0 in its IPv4 headers, and without their checksums.
fn without_identifications(bytes: &[u8], layer: Layer) -> Vec<u8> {
    let mut plain = bytes.to_vec();
    for header in
        check::layers(bytes, layer == Layer::Ip).iter().filter(|header| header.kind == Kind::Ipv4)
    {
        plain[header.offset + 4..header.offset + 6].fill(0);
        plain[header.offset + 10..header.offset + 12].fill(0);
    }
    plain
}

#[cfg(test)]
mod tests {
    use superpacket::{HashKey, Policy};

    use super::super::pool::Pool;
    use super::*;

    /// What the judge says where each packet that leaves is changed so.
    fn judged(change: impl Fn(&mut Vec<u8>)) -> Option<String> {
        let mut pool = Pool::new(3);
        let framing = Framing::TAP;
        let mut engine = BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(1));
        for _ in 0..20 {
            let used = pool.next_use();
            let mut judge = Judge::default();
            judge.begin(&used);
            let mut framed = Framed::new(&used, framing);
            framed.pass_others(&mut judge);
            let packets: Vec<_> = framed.taken.iter().map(|taken| taken.bytes.clone()).collect();
            framed
                .taken
                .iter_mut()
                .for_each(|taken| (taken.checksum, taken.completed) = (RxChecksum::None, None));
            engine.poll_gathered(&packets, |slices| {
                let mut written = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                change(&mut written);
                framed.look(&written, &mut judge);
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
        // The size of segments.
        let problem = judged(|written| written[4] ^= u8::from(merged(written)));
        assert!(problem.expect("another size").contains("a segment that is no frame"));
        let problem = judged(|written| written[0] |= u8::from(!merged(written)));
        assert!(problem.expect("a checksum to be filled in").contains("is said to be partial"));
    }
}
