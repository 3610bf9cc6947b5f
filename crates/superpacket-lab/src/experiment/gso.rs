//! Generic segmentation offload (Herbert Xu, 2006): segmentation of super-packets in
//! software, as late as possible.
//!
//! The original report found that much of TSO's gain comes from one pass through the stack per
//! super-packet instead of one per segment, and so needs no hardware. Here the bridge takes the
//! stack's place: it forwards the same stream either segmented by the sender, or whole and
//! segmented at the egress port. The original report also has a fallback: a bridge can keep TSO
//! although some ports lack it.

mod live;
mod model;

use super::Entry;

/// Description of the GSO experiment, as an element of `experiment::ALL`.
pub const ENTRY: Entry = Entry {
    name: "gso",
    headline: "throughput, cut at the egress over cut before the bridge (Xu, 2006)",
    source: "Herbert Xu, generic segmentation offload, 2006",
    summary: "Super-packets are cut in software before the bridge or at the port by which they leave, at an MTU of 1500: at ports that gather pieces and ports that \
              do not, and through a bridge of which one port has no TSO.",
    live: live::run,
    measurements: live::measurements,
    model: model::run,
};

/// Throughput that the original report measured over the loopback device at an MTU of 1500, in
/// Mb/s, with GSO off and on.
const SOURCE_THROUGHPUT: [f64; 2] = [3061.05, 3598.17];

/// Required ratio of throughput, late over early segmentation: that of the original report.
const TARGET: f64 = 1.175;

/// Required ratio of throughput, late over early segmentation, on a port that copies the payload
/// once more. The original report found the cost of the copy "mostly offset" by the savings, so
/// nearly no loss is permitted.
const LINEAR_TARGET: f64 = 0.98;

const BEFORE: &str = "before the bridge";
const AT_EGRESS: &str = "at the egress";
