//! TCP segmentation offload (source 003, Jan Kasprzak, 2005): a file sent by sendfile(2) with TSO
//! off and on.
//!
//! The source found TSO slower than no TSO, saw frames of at most 15,928 bytes of payload given to
//! the card where it expected 64 KB, and never learned why. Its measurement is repeated with both
//! sizes; no cause is claimed that the run does not show.

mod live;
mod model;

use super::{Entry, Plan};

/// The experiment.
pub const ENTRY: Entry = Entry {
    name: "tso",
    headline: "speed of a file sent by sendfile, TSO on over off (Kasprzak, 2005)",
    source: "Jan Kasprzak, TCP segmentation offload performance, 2005",
    summary: "A file is sent by sendfile(2) with TSO off, with TSO of at most 15,928 bytes of payload as the source saw it, and with TSO of 64 KB.",
    live: live::run,
    measurements: |plan| {
        Client::ALL.iter().map(|client| client.variants(plan)).sum::<usize>() * plan.rounds
    },
    model: model::run,
};

/// The source's file: Fedora Core 4, the first CD.
const FILE: u64 = 665_434_112;

/// The largest payload of a frame that the source saw given to the card: 11 segments of 1,448
/// bytes.
const SOURCE_PAYLOAD: u32 = 15_928;

/// The names of the variants.
const VARIANTS: [&str; 3] = ["TSO off", "TSO on, at most 15,928 bytes", "TSO on, 64 KB"];

/// What the source measured for its client Alpha, TSO off and on: 10^6 bytes a second on average,
/// and at best, of the last five transfers.
const SOURCE_SPEED: [[f64; 2]; 2] = [[108.7, 110.5], [100.9, 101.2]];

/// The same for its client Beta.
const BETA_SPEED: [[f64; 2]; 2] = [[102.1, 102.4], [93.2, 95.5]];

/// What the rows of client Beta are called.
const BETA: &str = "the source's client Beta";

/// TSO is never to be slower than no TSO.
const TARGET: f64 = 1.0;

/// What a mark on a variant of TSO is called, for a kind of client.
fn mark(client: Client, variant: usize) -> String {
    format!("tso: {}, {} against off", client.name(), VARIANTS[variant])
}

/// The clients, and what the bridge does before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Of the source's kind.
    Wire,
    /// It takes super-packets whole.
    Whole,
    /// As the first, but the bridge aggregates, with its default settings.
    Gro,
    /// The same, and what carries PSH merges further (`gro_past_push`).
    GroPastPush,
}

impl Client {
    const ALL: [Self; 4] = [Self::Wire, Self::Whole, Self::Gro, Self::GroPastPush];

    fn name(self) -> &'static str {
        match self {
            Self::Wire => "client behind a wire of 1500 bytes",
            Self::Whole => "client that takes super-packets",
            Self::Gro => "client behind a wire of 1500 bytes, bridge with GRO by default",
            Self::GroPastPush => {
                "client behind a wire of 1500 bytes, bridge with GRO and gro_past_push"
            }
        }
    }

    /// What a report of one screen calls the marks: those on the limited TSO and on that of 64 KB.
    fn briefs(self) -> [&'static str; 2] {
        match self {
            Self::Wire => ["wire of 1500: 15,928 bytes over off", "wire of 1500: 64 KB over off"],
            Self::Whole => ["takes all whole: 15,928 over off", "takes all whole: 64 KB over off"],
            Self::Gro => ["GRO by default: 15,928 over off", "GRO by default: 64 KB over off"],
            Self::GroPastPush => {
                ["GRO, gro_past_push: 15,928 over off", "GRO, gro_past_push: 64 KB over off"]
            }
        }
    }

    /// How many of [`VARIANTS`] a plan measures. By default the limited TSO is what the switch
    /// changes: a quick run does without the other.
    fn variants(self, plan: Plan) -> usize {
        if plan.quick && self == Self::Gro { VARIANTS.len() - 1 } else { VARIANTS.len() }
    }
}
