//! The change to a port's steering that a `set-rps` request asks for.

use superpacket_bridge::settings::InPlace;

use super::{ErrorCode, Refusal};

/// A change to the steering of a receive queue's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpsChange {
    /// A new `rps_cpus` mask in sysfs format: `ff`, `1,,5`.
    Mask(String),
    /// A new `rps_cpus` mask as a list of CPUs: `0-3,8`.
    List(String),
    /// A new `rps_cpus` mask: the CPUs that share a cache with the receiving CPU.
    Auto,
    /// A new `rps_flow_cnt`: the number of flows per receive queue that RFS distinguishes.
    FlowCount(u64),
    /// A new rule for when the receiving thread processes a port's packets in spite of a mask.
    InPlace(InPlace),
}

impl RpsChange {
    /// Returns the change in the fields of a `set-rps` request.
    ///
    /// # Errors
    /// [`ErrorCode::Malformed`] if there is not exactly one change, or if it cannot be made for a
    /// single queue.
    pub(super) fn from_request(
        queue: Option<u16>,
        mask: Option<String>,
        list: Option<String>,
        auto: bool,
        flow_count: Option<u64>,
        in_place_below: Option<InPlace>,
    ) -> Result<Self, Refusal> {
        let malformed = |problem: &str| {
            Err(Refusal::new(
                ErrorCode::Malformed,
                format_args!("the request cannot be read: {problem}"),
            ))
        };
        if queue.is_some() && in_place_below.is_some() {
            return malformed("in_place_below holds for all queues of a port");
        }
        match (mask, list, auto, flow_count, in_place_below) {
            (Some(mask), None, false, None, None) => Ok(RpsChange::Mask(mask)),
            (None, Some(list), false, None, None) => Ok(RpsChange::List(list)),
            (None, None, true, None, None) => Ok(RpsChange::Auto),
            (None, None, false, Some(count), None) => Ok(RpsChange::FlowCount(count)),
            (None, None, false, None, Some(when)) => Ok(RpsChange::InPlace(when)),
            _ => malformed("it takes one of mask, cpu_list, auto, flow_count, in_place_below"),
        }
    }
}
