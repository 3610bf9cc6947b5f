//! Loss, duplication, reordering and delay by the kernel's queueing discipline netem
//! (tc-netem(8)). For kernels without it, [`crate::Wire`] does the same in user space.

use std::time::Duration;

use crate::error::LabError;
use crate::link::Link;

/// Impairments of the packets that leave an interface. To netem a super-packet is one packet:
/// switch TSO off to lose single segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Netem {
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Share of packets that are sent twice, 0 to 1.
    pub duplicate: f64,
    /// Share of packets that are sent without delay, and so overtake delayed ones, 0 to 1. Requires
    /// a delay.
    pub reorder: f64,
    /// Delay of each packet.
    pub delay: Duration,
}

impl Link {
    /// Sets netem as the root queueing discipline of this interface, in place of the previous one.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if `tc` is not installed or the kernel has no netem;
    /// [`LabError::System`] for other refusals.
    pub fn set_netem(&self, netem: &Netem) -> Result<(), LabError> {
        let percent = |part: f64| format!("{}%", part * 100.0);
        let mut arguments: Vec<String> =
            ["qdisc", "replace", "dev", self.name(), "root", "netem", "limit", "10000"]
                .map(str::to_owned)
                .into();
        arguments.extend(["delay".into(), format!("{}us", netem.delay.as_micros())]);
        for (word, part) in
            [("loss", netem.loss), ("duplicate", netem.duplicate), ("reorder", netem.reorder)]
        {
            if part > 0.0 {
                arguments.extend([word.into(), percent(part)]);
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.traffic_control(&arguments)
    }

    /// Removes the root queueing discipline that [`Link::set_netem`] set.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if there was none.
    pub fn clear_netem(&self) -> Result<(), LabError> {
        self.traffic_control(&["qdisc", "delete", "dev", self.name(), "root"])
    }

    fn traffic_control(&self, arguments: &[&str]) -> Result<(), LabError> {
        match self.host().output("tc", arguments) {
            Err(LabError::System { what, source })
                if source.to_string().contains("qdisc kind is unknown") =>
            {
                Err(LabError::Unsupported {
                    what,
                    reason: "this kernel has no netem (CONFIG_NET_SCH_NETEM)".into(),
                })
            }
            other => other.map(drop),
        }
    }
}
