//! Source 001: what LRO is worth to a receiver, by the buffers that its card receives into
//! (Gallatin, 2007).
//!
//! A host receives in bulk; the bridge is its card and the card's driver. The card fills pages of 4
//! KB to 32 KB, or a linear buffer for each frame; the driver merges what it finds there by LRO, by
//! GRO, or not at all.

mod live;
mod model;
mod report;

use self::live::Arrangement;
use self::report::{Measured, report};
use super::{Entry, Experiment, Plan, Session, Variant};
use crate::error::LabError;
use crate::load::{PatternFile, Source};

/// The experiment.
pub const ENTRY: Entry = Entry {
    name: NAME,
    headline: HEADLINE,
    source: SOURCE,
    summary: SUMMARY,
    live,
    measurements,
    model: model::run,
};

const NAME: &str = "lro";
const HEADLINE: &str = "throughput by LRO to a receiver, timestamps off (Gallatin, 2007)";
const SOURCE: &str = "Gallatin, Generic Large Receive Offload: review, 2007";
const SUMMARY: &str = "A host receives a file by a card that fills pages or linear buffers, and whose driver merges by LRO, by GRO or not: \
                       throughput and the receiver's CPU, for three pairs of MTUs.";

/// What the card receives into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffers {
    Page4K,
    Page8K,
    Page16K,
    Page32K,
    /// A buffer for each frame; what merges is copied into one.
    Linear,
}

impl Buffers {
    const ALL: [Self; 5] = [Self::Page4K, Self::Page8K, Self::Page16K, Self::Page32K, Self::Linear];

    /// As the source calls them.
    fn name(self) -> &'static str {
        match self {
            Self::Page4K => "4K pg",
            Self::Page8K => "8K pg",
            Self::Page16K => "16Kpg",
            Self::Page32K => "32Kpg",
            Self::Linear => "skb",
        }
    }

    /// As the model of a card calls them.
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

/// The MTUs of both hosts, in bytes.
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

/// How the driver merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    Lro,
    /// LRO by the count to which the source's driver limited it.
    LroByCount,
    Gro,
    Not,
}

impl Merge {
    const ALL: [Self; 4] = [Self::Lro, Self::LroByCount, Self::Gro, Self::Not];

    fn name(self) -> &'static str {
        match self {
            Self::Lro => "LRO",
            Self::LroByCount => "LRO, 0xffff/MTU",
            Self::Gro => "GRO",
            Self::Not => "no LRO",
        }
    }
}

/// The most frames that the source's driver let become one by its own MTU, 0xffff / MTU, without
/// the two other limits of its patch (`lro_max_pkts`, `MAX_SKB_FRAGS`). At an MTU of 1500 that is
/// 43, about as many as 64 KB hold; at 9000 it is 7 also where the sender's frames are of 1500
/// bytes.
const fn count_limit(mtus: Mtus) -> u32 {
    0xffff / mtus.receiver
}

/// Is that less than 64 KB hold of the sender's frames?
const fn is_limited(mtus: Mtus) -> bool {
    mtus.sender < mtus.receiver
}

/// One measurement of the experiment.
type Cell = (Buffers, Mtus, Merge);

/// What is measured, in groups whose members are measured in turn with each other.
fn cells(quick: bool) -> Vec<Vec<Cell>> {
    if quick {
        let (pages, linear) = (Buffers::Page4K, Buffers::Linear);
        return vec![
            vec![
                (pages, Mtus::SMALL, Merge::Lro),
                (pages, Mtus::SMALL, Merge::Not),
                (pages, Mtus::MIXED, Merge::Lro),
                (pages, Mtus::MIXED, Merge::LroByCount),
            ],
            vec![(linear, Mtus::SMALL, Merge::Lro), (linear, Mtus::SMALL, Merge::Not)],
        ];
    }
    // Where the count is no less than the bytes, it is measured once.
    let differs = |cell: &Cell| cell.2 != Merge::LroByCount || is_limited(cell.1);
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
    cells(plan.quick).iter().map(Vec::len).sum::<usize>() * plan.rounds
}

fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    // Small enough for a cache: what is measured is not the memory.
    let file = Source::File(PatternFile::new(4 << 20, 1)?);
    let (mut measured, mut refused) = (Measured::new(), None);
    for group in cells(session.plan.quick) {
        let mut variants = Vec::new();
        for &(buffers, mtus, merge) in &group {
            session.check()?;
            let arrangement = Arrangement::new(buffers, mtus, merge, file.clone(), session.cpus)?;
            refused = refused.or_else(|| arrangement.refused.clone());
            let name = format!(
                "{NAME}: {}, MTU {} to {}, {}",
                buffers.name(),
                mtus.sender,
                mtus.receiver,
                merge.name()
            );
            let time = session.plan.time;
            variants.push(Variant::new(name, move || arrangement.measure(time)));
        }
        let samples = session.interleaved(&mut variants)?;
        measured.extend(group.iter().copied().zip(samples));
    }
    Ok(report(&measured, session.plan.rounds, refused))
}
