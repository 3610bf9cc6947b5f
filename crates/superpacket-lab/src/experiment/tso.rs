//! TCP segmentation offload (Jan Kasprzak, 2005): a file sent by sendfile(2) with TSO
//! off and on.
//!
//! The original report found TSO slower than no TSO. Its card received super-packets of at most
//! 15,928 payload bytes instead of the expected 64 KB, for an unknown reason. The measurement is
//! repeated with both sizes; no cause is claimed that the run does not show.

mod live;
mod model;

use super::{Entry, Plan};

/// Description of the TSO experiment, as an element of `experiment::ALL`.
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

/// Size of the original report's file, the first CD of Fedora Core 4.
const FILE: u64 = 665_434_112;

/// Largest payload of a super-packet that the original report observed: 11 segments of 1,448 bytes.
const SOURCE_PAYLOAD: u32 = 15_928;

/// The names of the variants.
const VARIANTS: [&str; 3] = ["TSO off", "TSO on, at most 15,928 bytes", "TSO on, 64 KB"];

/// The original report's figures for its client Alpha, with TSO off and on: average and best of the
/// last five transfers, in 10^6 bytes per second.
const SOURCE_SPEED: [[f64; 2]; 2] = [[108.7, 110.5], [100.9, 101.2]];

/// The original report's figures for its client Beta, with TSO off and on: average and best of the
/// last five transfers, in 10^6 bytes per second.
const BETA_SPEED: [[f64; 2]; 2] = [[102.1, 102.4], [93.2, 95.5]];

/// Name of the rows of client Beta.
const BETA: &str = "the source's client Beta";

/// Required ratio of speed, TSO on over off: TSO must not be slower than no TSO.
const TARGET: f64 = 1.0;

/// Returns the name of the `Mark` that compares a variant of TSO with its target, for a client.
fn mark(client: Client, variant: usize) -> String {
    format!("tso: {}, {} against off", client.name(), VARIANTS[variant])
}

/// The kind of the receiving client, and whether the bridge aggregates the packets sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The client is behind a wire with an MTU of 1500, as in the original report.
    Wire,
    /// The client accepts super-packets without segmentation.
    Whole,
    /// Like `Wire`, but the bridge aggregates with its default settings.
    Gro,
    /// Like `Gro`, but packets with PSH can merge with later ones (`gro_past_push`).
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

    /// Returns the names that short reports show for the client's two targets: limited TSO over
    /// none, and TSO of 64 KB over none.
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

    /// Returns the number of [`VARIANTS`] to measure. With default GRO, a quick run leaves out TSO
    /// of 64 KB.
    fn variants(self, plan: Plan) -> usize {
        if plan.quick && self == Self::Gro { VARIANTS.len() - 1 } else { VARIANTS.len() }
    }
}
