//! What a request changes of a port's steering.

use super::{ErrorCode, Refusal};
use crate::settings::InPlace;

/// A change of how a receive queue's packets are steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpsChange {
    /// `rps_cpus`, in the form of sysfs: `ff`, `1,,5`.
    Mask(String),
    /// `rps_cpus`, as a list: `0-3,8`.
    List(String),
    /// `rps_cpus`: the CPUs that share a cache with the one that receives.
    Auto,
    /// `rps_flow_cnt`.
    FlowCount(u64),
    /// When a port's packets are processed where they are received in spite of a mask.
    InPlace(InPlace),
}

impl RpsChange {
    /// The one change that a request's fields ask for.
    ///
    /// # Errors
    /// [`ErrorCode::Malformed`] if there is none, or more than one; or if it is for a queue and
    /// cannot be.
    pub(super) fn of(
        queue: Option<u16>,
        mask: Option<String>,
        list: Option<String>,
        auto: bool,
        flow_count: Option<u64>,
        in_place_below: Option<InPlace>,
    ) -> Result<Self, Refusal> {
        let malformed = |says: &str| {
            Err(Refusal::new(
                ErrorCode::Malformed,
                format_args!("the request cannot be read: {says}"),
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
