//! A pool of polls of generated frames. Each poll is used many times, each time with changed
//! fields, since generating a frame costs more than aggregating it.

use std::rc::Rc;

use superpacket::packet::VlanTag;
use superpacket::segment::GsoPacket;
use superpacket::wire::{self, IpVersion, Layout, MAX_HEADER, Protocol};
use superpacket::{Layer, RxChecksum, SegmentOptions, Segmenter, Simd};
use superpacket_traffic::check::{self, FlowKey};
use superpacket_traffic::generate::{self, Checksum, Config, Generated, Impairments, Stream};
use superpacket_traffic::random::Random;

/// Number of frames per poll.
pub const FRAMES: usize = 64;

/// Number of polls in the pool.
const POLLS: usize = 64;

/// Number of uses of the pool after which one of its polls is generated again.
const USES: u64 = 48;

/// What identifies a flow within which order must be kept: its key, and the VLAN ID of a stripped
/// tag.
pub type PoolFlow = (Option<FlowKey>, Option<u16>);

/// A frame, and the metadata that a device would report.
#[derive(Clone, Debug)]
pub struct PoolFrame {
    /// The frame's bytes, shared with the packets of the poll.
    pub bytes: Rc<Vec<u8>>,
    /// The layer at which the frame starts.
    pub layer: Layer,
    /// The VLAN tag that the device stripped.
    pub vlan: Option<VlanTag>,
    /// The state of the frame's checksums.
    pub checksum: RxChecksum,
    /// The number of the frame's flow in the poll, according to the bytes as generated.
    pub flow: usize,
    /// Whether the frame is varied for the current use only, and may belong to another flow.
    pub damaged: bool,
    layout: Option<Layout>,
}

impl PoolFrame {
    fn new(generated: Generated, flows: &mut Vec<PoolFlow>) -> Self {
        let layer = if generated.starts_at_ip { Layer::Ip } else { Layer::Ethernet };
        let checksum = match generated.checksum {
            Checksum::Unknown => RxChecksum::None,
            Checksum::Verified { level } => RxChecksum::Unnecessary { level },
            Checksum::Complete(sum) => RxChecksum::Complete(sum),
            Checksum::Partial { start, offset } => RxChecksum::Partial { start, offset },
        };
        let vlan = generated.stripped_vlan.map(|(protocol, control)| VlanTag { protocol, control });
        let layout = wire::parse_datagram(&generated.bytes, generated.bytes.len(), layer).ok();
        let mut frame = PoolFrame {
            bytes: Rc::new(generated.bytes),
            layer,
            vlan,
            checksum,
            flow: 0,
            damaged: false,
            layout,
        };
        let key = frame.flow_key();
        frame.flow = flows.iter().position(|flow| *flow == key).unwrap_or_else(|| {
            flows.push(key);
            flows.len() - 1
        });
        frame
    }

    /// Returns what identifies the flow to which the frame's current bytes belong, by an
    /// independent parser.
    pub fn flow_key(&self) -> PoolFlow {
        (
            check::flow_key(&self.bytes, self.layer == Layer::Ip),
            self.vlan.map(|tag| tag.control & 0x0fff),
        )
    }

    /// Returns whether the device reports a partial innermost checksum.
    pub fn is_partial(&self) -> bool {
        matches!(self.checksum, RxChecksum::Partial { .. })
    }

    /// Adds a number to one word of the frame, and corrects the checksums that cover the word.
    fn change(&mut self, change: WordChange, simd: Simd) {
        let Some((at, sums)) = change.place.find(self) else { return };
        let layout = self.layout;
        let bytes = writable(&mut self.bytes);
        let Some(field) = bytes.get_mut(at..at + 2) else { return };
        let old = u16::from_be_bytes([field[0], field[1]]);
        let new = old.wrapping_add(change.by);
        field.copy_from_slice(&new.to_be_bytes());
        if sums.header {
            correct(bytes, sums.network + 10, old, new, false);
        }
        if let Some(layout) = layout.filter(|_| sums.transport) {
            let checksum =
                usize::from(layout.transport) + usize::from(layout.protocol.checksum_offset());
            correct(bytes, checksum, old, new, layout.protocol == Protocol::Udp);
        }
        if let RxChecksum::Complete(_) = self.checksum {
            self.checksum = RxChecksum::Complete(
                simd.sum(bytes.get(if self.layer == Layer::Ip { 0 } else { 14 }..).unwrap_or(&[])),
            );
        }
    }

    /// Changes one word in the headers or just behind them. `right` tells whether the header
    /// checksum or transport checksum that covers the word is corrected. Unless the checksum is
    /// partial, the device then reports no checksum state.
    fn damage(&mut self, random: &mut Random, right: bool) {
        let (layout, partial) = (self.layout, self.is_partial());
        let bytes = writable(&mut self.bytes);
        let reach =
            layout.map_or(MAX_HEADER, |layout| usize::from(layout.payload) + 8).min(bytes.len());
        let at = random.below((reach as u64 / 2).max(1)) as usize * 2;
        let Some(field) = bytes.get_mut(at..at + 2) else { return };
        let old = u16::from_be_bytes([field[0], field[1]]);
        let new = match random.below(3) {
            0 => old ^ 1 << random.below(16),
            1 => old.wrapping_add(1),
            _ => random.bits() as u16,
        };
        field.copy_from_slice(&new.to_be_bytes());
        if let Some(layout) = layout.filter(|_| right) {
            let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
            let checksum = transport + usize::from(layout.protocol.checksum_offset());
            if at >= transport && !partial && at != checksum {
                correct(bytes, checksum, old, new, layout.protocol == Protocol::Udp);
            } else if (network..transport).contains(&at)
                && layout.version == IpVersion::V4
                && at != network + 10
            {
                correct(bytes, network + 10, old, new, false);
            }
        }
        if !partial {
            self.checksum = RxChecksum::None;
        }
    }
}

fn writable(bytes: &mut Rc<Vec<u8>>) -> &mut Vec<u8> {
    Rc::get_mut(bytes).expect("no packet is held after a poll")
}

/// Returns a packet with its checksum completed; `None` if the engine refuses the packet.
pub fn complete(bytes: &Vec<u8>, checksum: RxChecksum, layer: Layer) -> Option<Vec<u8>> {
    let packet = GsoPacket::linear(bytes, None).with_checksum(checksum).with_layer(layer);
    let mut out = Vec::new();
    Segmenter::new().segment_linear(&packet, &SegmentOptions::default(), &mut out).ok()?;
    Some(out)
}

/// Corrects a checksum for a changed word (RFC 1624, equation 3). `optional` tells whether a
/// checksum of 0 means that there is none, as in UDP.
fn correct(bytes: &mut [u8], at: usize, old: u16, new: u16, optional: bool) {
    let Some(field) = bytes.get_mut(at..at + 2) else { return };
    let checksum = u16::from_be_bytes([field[0], field[1]]);
    if optional && checksum == 0 {
        return;
    }
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let checksum = match !(sum as u16) {
        0 if optional => 0xffff,
        checksum => checksum,
    };
    field.copy_from_slice(&checksum.to_be_bytes());
}

/// A change of one word in all frames of a poll: a number that is added to the word.
#[derive(Clone, Copy, Debug)]
struct WordChange {
    place: WordPosition,
    by: u16,
}

/// The position of a word that may have any value, in bytes from the start of a header or the
/// payload.
#[derive(Clone, Copy, Debug)]
enum WordPosition {
    /// The word at this offset of the MAC addresses.
    Mac(usize),
    /// The word at this offset of the outermost IP header.
    Ip(usize),
    /// The word at this offset of the innermost transport header.
    Transport(usize),
    /// The word at this offset of the payload.
    Payload(usize),
}

/// The checksums of a frame that cover a word.
#[derive(Clone, Copy, Debug, Default)]
struct CoveringSums {
    /// Whether the IPv4 header checksum of the header at offset `network` covers the word.
    header: bool,
    /// Offset of the outermost IP header, in bytes from the start of the frame; meaningful only if
    /// the word is in that header.
    network: usize,
    /// Whether the innermost transport checksum covers the word.
    transport: bool,
}

impl WordPosition {
    fn random(random: &mut Random) -> WordChange {
        let mut by = random.bits() as u16;
        let place = match random.below(8) {
            0 => WordPosition::Mac(2 * random.below(6) as usize),
            1 | 2 => {
                let at = 2 * random.below(20) as usize;
                // The fields that share a word with TTL and hop limit must not change.
                by = match at {
                    6 => by & 0xff,
                    8 => by & 0xff00,
                    _ => by,
                };
                WordPosition::Ip(at)
            }
            3..=6 => WordPosition::Transport(2 * random.below(30) as usize),
            _ => WordPosition::Payload(2 * random.below(700) as usize),
        };
        WordChange { place, by }
    }

    /// Returns the offset of a word in a frame, and the checksums that cover the word; `None` if
    /// the frame has no such word, or it must not change.
    fn find(self, frame: &PoolFrame) -> Option<(usize, CoveringSums)> {
        let transport_sum =
            CoveringSums { transport: !frame.is_partial(), ..CoveringSums::default() };
        let layout = frame.layout.as_ref();
        match self {
            WordPosition::Mac(at) => {
                (frame.layer == Layer::Ethernet).then_some((at, CoveringSums::default()))
            }
            WordPosition::Ip(at) => Self::in_ip(at, frame, layout?),
            WordPosition::Transport(at) => {
                let layout = layout?;
                let header = usize::from(layout.payload - layout.transport);
                let free = match layout.protocol {
                    Protocol::Tcp => {
                        matches!(at, 0 | 2 | 4 | 6 | 8 | 10 | 14 | 18) || (20..header).contains(&at)
                    }
                    _ => at < 4,
                };
                free.then_some((usize::from(layout.transport) + at, transport_sum))
            }
            WordPosition::Payload(at) => {
                let layout = layout.filter(|layout| layout.protocol != Protocol::Dccp)?;
                Some((usize::from(layout.payload) + at, transport_sum))
            }
        }
    }

    fn in_ip(at: usize, frame: &PoolFrame, layout: &Layout) -> Option<(usize, CoveringSums)> {
        let outer = layout.outer;
        let (network, version) =
            outer.map_or((layout.network, layout.version), |outer| (outer.network, outer.version));
        let network = usize::from(network);
        let v4 = version == IpVersion::V4;
        // A tunnel's checksum also covers the outer addresses, and a partial checksum covers only
        // addresses.
        let addresses = outer.is_none() && !frame.is_partial();
        let is_address = if v4 { (12..20).contains(&at) } else { (8..40).contains(&at) };
        let free = if v4 { matches!(at, 4 | 8) } else { matches!(at, 2 | 6) };
        let sums = CoveringSums { header: v4, network, transport: is_address };
        (free || is_address && addresses).then_some((network + at, sums))
    }
}

/// A poll for one use: its frames, and the order in which they arrive.
#[derive(Debug)]
pub struct PollUse<'p> {
    /// The frames of the poll.
    pub frames: &'p [PoolFrame],
    /// Indices of the frames that arrive, in order. Some frames arrive twice, and some never.
    pub order: &'p [usize],
}

/// A pool of generated polls, reproducible by its seed.
pub struct PollPool {
    random: Random,
    streams: Vec<Stream>,
    polls: Vec<Vec<PoolFrame>>,
    order: Vec<usize>,
    /// The original headers and checksum states of the frames that are varied for the current use,
    /// by index.
    undo: Vec<(usize, Vec<u8>, RxChecksum)>,
    used: usize,
    uses: u64,
    simd: Simd,
}

impl PollPool {
    /// Generates the polls of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = |flows, impairments| Config {
            flows,
            impairments,
            encapsulated: 0.3,
            offloaded: 0.4,
            ..Config::default()
        };
        let configs = [
            config(1, Impairments::NONE),
            config(3, Impairments::default()),
            config(12, Impairments::default()),
            config(4, Impairments::traps()),
        ];
        let streams =
            configs.into_iter().map(|config| generate::stream(random.bits(), config)).collect();
        let mut pool = PollPool {
            random,
            streams,
            polls: Vec::new(),
            order: Vec::new(),
            undo: Vec::new(),
            used: 0,
            uses: 0,
            simd: Simd::detect(),
        };
        for _ in 0..POLLS {
            let poll = pool.generate();
            pool.polls.push(poll);
        }
        pool
    }

    fn generate(&mut self) -> Vec<PoolFrame> {
        let stream = self.random.below(self.streams.len() as u64) as usize;
        let mut flows = Vec::new();
        self.streams[stream]
            .by_ref()
            .take(FRAMES)
            .map(|generated| PoolFrame::new(generated, &mut flows))
            .collect()
    }

    /// Selects a poll and varies it for one use: two words of all frames, any word of a few frames,
    /// and the order of arrival.
    pub fn next_use(&mut self) -> PollUse<'_> {
        self.restore();
        self.uses += 1;
        if self.uses.is_multiple_of(USES) {
            let replaced = self.random.below(POLLS as u64) as usize;
            self.polls[replaced] = self.generate();
        }
        let random = &mut self.random;
        self.used = random.below(POLLS as u64) as usize;
        let poll = &mut self.polls[self.used];
        for _ in 0..2 {
            let change = WordPosition::random(random);
            poll.iter_mut().for_each(|frame| frame.change(change, self.simd));
        }
        for _ in 0..random.below(6) {
            let index = random.below(poll.len() as u64) as usize;
            let frame = &mut poll[index];
            self.undo.push((
                index,
                frame.bytes[..frame.bytes.len().min(MAX_HEADER + 8)].to_vec(),
                frame.checksum,
            ));
            let right = random.chance(0.7);
            frame.damage(random, right);
            frame.damaged = true;
        }
        self.order.clear();
        self.order.extend(0..poll.len());
        for _ in 0..random.below(4) {
            let index = random.below(self.order.len() as u64 - 4) as usize;
            match random.below(4) {
                0 => drop(self.order.remove(index)),
                1 => self.order.insert(index, self.order[index]),
                _ => self.order.swap(index, index + random.between(1, 4)),
            }
        }
        PollUse { frames: poll, order: &self.order }
    }

    /// Restores the frames of the last poll that were varied for one use only.
    fn restore(&mut self) {
        let poll = &mut self.polls[self.used];
        for (index, bytes, checksum) in self.undo.drain(..).rev() {
            let frame = &mut poll[index];
            frame.checksum = checksum;
            frame.damaged = false;
            writable(&mut frame.bytes)[..bytes.len()].copy_from_slice(&bytes);
        }
    }
}
