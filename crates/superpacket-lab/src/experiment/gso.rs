//! Generic segmentation offload (source 004, Herbert Xu, 2006): super-packets cut in software, as
//! late as possible.
//!
//! The source's point is that much of what TSO saves is saved by going through the stack once for
//! each super-packet rather than once for each segment, so that no hardware is needed for it. Here
//! the bridge is the stack that is gone through: the same stream crosses it cut by its sender
//! before, or whole, to be cut at the port by which it leaves. The source's second point is the
//! fallback: a bridge of which only some ports have TSO need not give it up for all.

mod live;
mod model;

use super::Entry;

/// The experiment.
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

/// What the source measured through the loopback device at an MTU of 1500: 10^6 bits a second with
/// GSO off and on.
const SOURCE_THROUGHPUT: [f64; 2] = [3061.05, 3598.17];

/// The least gain of cutting late: the source's.
const TARGET: f64 = 1.175;

/// On a port for which the payload is copied once more, the source finds the cost of that copy
/// "mostly offset" by what is saved: what is left is nearly nothing.
const LINEAR_TARGET: f64 = 0.98;

const BEFORE: &str = "before the bridge";
const AT_EGRESS: &str = "at the egress";
