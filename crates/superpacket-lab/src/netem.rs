//! A bad line by the kernel's own means: the queueing discipline netem (tc-netem(8)). Where a
//! kernel lacks it, [`crate::Wire`] does the same in user space.

use std::time::Duration;

use crate::error::LabError;
use crate::link::Link;

/// What netem does to packets that leave an interface. A super-packet is one packet to it: switch
/// TSO off where segments are to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Netem {
    /// Part of the packets that are lost, 0 to 1.
    pub loss: f64,
    /// Part of the packets that are sent twice, 0 to 1.
    pub duplicate: f64,
    /// Part of the packets that are sent at once, and so overtake those delayed, 0 to 1; needs a
    /// delay.
    pub reorder: f64,
    /// How long packets are held.
    pub delay: Duration,
}

impl Link {
    /// Puts netem on what leaves this interface, in place of what was there.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where `tc` is not installed, or the kernel has no netem;
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

    /// Takes away what [`Link::set_netem`] put there.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there was nothing.
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
