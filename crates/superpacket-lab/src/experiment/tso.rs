//! TCP segmentation offload (source 003, Jan Kasprzak, 2005): a file sent by sendfile(2) with TSO
//! off and on.
//!
//! The source found TSO slower than no TSO, saw frames of at most 15,928 bytes of payload given to
//! the card where it expected 64 KB, and never learned why. Its measurement is repeated with both
//! sizes; no cause is claimed that the run does not show.

mod live;
mod model;

use super::Entry;

/// The experiment.
pub const ENTRY: Entry = Entry {
    name: "tso",
    headline: "speed of a file sent by sendfile, TSO on over off (Kasprzak, 2005)",
    source: "Jan Kasprzak, TCP segmentation offload performance, 2005",
    summary: "A file is sent by sendfile(2) with TSO off, with TSO of at most 15,928 bytes of payload as the source saw it, and with TSO of 64 KB.",
    live: live::run,
    measurements: |plan| CLIENTS.len() * VARIANTS.len() * plan.rounds,
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
fn mark(client: &str, variant: usize) -> String {
    format!("tso: {client}, {} against off", VARIANTS[variant])
}

/// The clients: of the source's kind, and one that takes super-packets.
const CLIENTS: [&str; 3] =
    ["client behind a wire of 1500 bytes", "client that takes super-packets", "client behind a wire of 1500 bytes, bridge with GRO"];

/// What a report of one screen calls the marks: for each client, those on the limited TSO and on
/// that of 64 KB.
const BRIEFS: [[&str; 2]; 3] = [
    ["wire of 1500: 15,928 bytes over off", "wire of 1500: 64 KB over off"],
    ["takes all whole: 15,928 over off", "takes all whole: 64 KB over off"],
    ["bridge with GRO: 15,928 over off", "bridge with GRO: 64 KB over off"],
];
