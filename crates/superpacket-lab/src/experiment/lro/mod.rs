//! LRO (Gallatin, 2007): the receiver's gain in throughput and CPU time, by the type of receive
//! buffers of its card.
//!
//! A host receives in bulk, and the bridge acts as its card and driver. The card fills pages of 4
//! KB to 32 KB, or one linear buffer per frame. The driver merges them by LRO, by GRO, or not at
//! all.

mod live;
mod model;
mod report;

use self::live::LroTestbed;
use self::report::{LroSamples, report};
use super::{Entry, Experiment, Plan, Session, Variant};
use crate::error::LabError;
use crate::load::{PatternFile, Source};

/// The experiment `lro`.
pub const ENTRY: Entry = Entry {
    name: "lro",
    headline: "throughput by LRO to a receiver, timestamps off (Gallatin, 2007)",
    source: "Gallatin, Generic Large Receive Offload: review, 2007",
    summary: "A host receives a file by a card that fills pages or linear buffers, and whose driver merges by LRO, by GRO or not: \
              throughput and the receiver's CPU, for three pairs of MTUs.",
    live,
    measurements,
    model: model::run,
};

/// The receive buffers that the card fills: pages of a size, or a linear buffer per frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffers {
    Page4K,
    Page8K,
    Page16K,
    Page32K,
    /// A separate buffer per frame; merged frames are copied into one buffer.
    Linear,
}

impl Buffers {
    const ALL: [Self; 5] = [Self::Page4K, Self::Page8K, Self::Page16K, Self::Page32K, Self::Linear];

    /// Returns the name used in the original report.
    fn name(self) -> &'static str {
        match self {
            Self::Page4K => "4K pg",
            Self::Page8K => "8K pg",
            Self::Page16K => "16Kpg",
            Self::Page32K => "32Kpg",
            Self::Linear => "skb",
        }
    }

    /// Returns the page size in the notation of the model NIC's options.
    fn option(self) -> &'static str {
        match self {
            Self::Page4K => "4k",
            Self::Page8K => "8k",
            Self::Page16K => "16k",
            Self::Page32K => "32k",
            Self::Linear => "linear",
        }
    }
}

/// MTUs of both hosts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mtus {
    sender: u32,
    receiver: u32,
}

impl Mtus {
    const SMALL: Self = Self { sender: 1500, receiver: 1500 };
    const MIXED: Self = Self { sender: 1500, receiver: 9000 };
    const JUMBO: Self = Self { sender: 9000, receiver: 9000 };
    const ALL: [Self; 3] = [Self::SMALL, Self::MIXED, Self::JUMBO];
}

/// How the model card's driver merges packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    Lro,
    /// LRO with the frame limit of the original report's driver.
    LimitedLro,
    Gro,
    Not,
}

impl Merge {
    const ALL: [Self; 4] = [Self::Lro, Self::LimitedLro, Self::Gro, Self::Not];

    fn name(self) -> &'static str {
        match self {
            Self::Lro => "LRO",
            Self::LimitedLro => "LRO, 0xffff/MTU",
            Self::Gro => "GRO",
            Self::Not => "no LRO",
        }
    }
}

/// Returns the original report's limit of frames per packet: 0xffff divided by the receiver's MTU.
///
/// At an MTU of 1500 it is 43, about the content of 64 KB. At 9000 it is 7, even for frames of 1500
/// bytes. The other limits of the original report's patch (`lro_max_pkts`, `MAX_SKB_FRAGS`) are not
/// used.
const fn count_limit(mtus: Mtus) -> u32 {
    0xffff / mtus.receiver
}

/// Returns whether the frame limit is below the number of the sender's frames in 64 KB.
const fn is_limited(mtus: Mtus) -> bool {
    mtus.sender < mtus.receiver
}

/// A combination to measure: receive buffers, MTUs, and how the driver merges packets.
type LroVariant = (Buffers, Mtus, Merge);

/// Returns the combinations to measure, in groups. The combinations of a group are measured
/// alternately.
fn variant_groups(quick: bool) -> Vec<Vec<LroVariant>> {
    if quick {
        let (pages, linear) = (Buffers::Page4K, Buffers::Linear);
        return vec![
            vec![
                (pages, Mtus::SMALL, Merge::Lro),
                (pages, Mtus::SMALL, Merge::Not),
                (pages, Mtus::MIXED, Merge::Lro),
                (pages, Mtus::MIXED, Merge::LimitedLro),
            ],
            vec![(linear, Mtus::SMALL, Merge::Lro), (linear, Mtus::SMALL, Merge::Not)],
        ];
    }
    // A frame limit that has no effect is not measured separately.
    let differs = |variant: &LroVariant| variant.2 != Merge::LimitedLro || is_limited(variant.1);
    let group = |buffers| {
        Mtus::ALL
            .into_iter()
            .flat_map(move |mtus| Merge::ALL.map(|merge| (buffers, mtus, merge)))
            .filter(differs)
            .collect()
    };
    Buffers::ALL.into_iter().map(group).collect()
}

fn measurements(plan: Plan) -> usize {
    variant_groups(plan.quick).iter().map(Vec::len).sum::<usize>() * plan.rounds
}

fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    // Small enough for the CPU's cache, so that memory speed does not matter.
    let file = Source::File(PatternFile::new(4 << 20, 1)?);
    let (mut measured, mut refused) = (LroSamples::new(), None);
    for group in variant_groups(session.plan.quick) {
        let mut variants = Vec::new();
        for &(buffers, mtus, merge) in &group {
            session.check()?;
            let testbed = LroTestbed::new(buffers, mtus, merge, file.clone(), session.cpus)?;
            refused = refused.or_else(|| testbed.refused.clone());
            let name = format!(
                "lro: {}, MTU {} to {}, {}",
                buffers.name(),
                mtus.sender,
                mtus.receiver,
                merge.name()
            );
            let time = session.plan.time;
            variants.push(Variant::new(name, move || testbed.measure(time)));
        }
        let samples = session.interleaved(&mut variants)?;
        measured.extend(group.iter().copied().zip(samples));
    }
    Ok(report(&measured, session.plan.rounds, refused))
}
