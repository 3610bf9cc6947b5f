//! The options of `pcap` ports.

use superpacket::packet::Layer;

use crate::{PortSpec, SpecError};

/// The parsed options of a port string.
#[derive(Debug, PartialEq)]
pub(super) struct ReplayOptions {
    pub(super) mode: ReplayMode,
}

/// Whether a port replays or records.
#[derive(Debug, PartialEq)]
pub(super) enum ReplayMode {
    /// The port replays a capture.
    Replay {
        /// The speed of the replay.
        speed: Speed,
        /// Number of times to replay the capture; `None` for endless.
        times: Option<u64>,
        /// Path of the file in which sent frames are recorded.
        record: Option<String>,
    },
    /// The port records the frames sent, and receives none.
    Record {
        /// The header with which the frames sent begin.
        layer: Layer,
    },
}

/// The speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speed {
    /// A multiple of the original speed: above 0, finite.
    Times(f64),
    /// As fast as the port is polled.
    Max,
}

impl ReplayOptions {
    pub(super) fn read(spec: &PortSpec) -> Result<Self, SpecError> {
        let options = spec.options();
        let mode = match options.get("mode") {
            None | Some("replay") => {
                options.only(&["mode", "speed", "loop", "record"])?;
                let speed = match options.get("speed") {
                    None | Some("timed") => Speed::Times(1.0),
                    Some("max") => Speed::Max,
                    Some(number) => {
                        let times = number
                            .parse()
                            .ok()
                            .filter(|times: &f64| times.is_finite() && *times > 0.0);
                        Speed::Times(times.ok_or_else(|| {
                            options.wrong("speed", "takes timed, max, or a number above 0: 2, 0.5")
                        })?)
                    }
                };
                let times = match options.get("loop") {
                    Some("forever") => None,
                    _ => Some(options.value("loop", "takes a number of times, or forever", 1)?),
                };
                if times != Some(1) && spec.device() == "-" {
                    return Err(
                        options.wrong("loop", "needs a file: standard input can be read once")
                    );
                }
                ReplayMode::Replay {
                    speed,
                    times,
                    record: options.get("record").map(str::to_owned),
                }
            }
            Some("record") => {
                options.only(&["mode", "layer"])?;
                let layers = [("ethernet", Layer::Ethernet), ("ip", Layer::Ip)];
                let layer = options.choice("layer", Layer::Ethernet, &layers)?;
                ReplayMode::Record { layer }
            }
            Some(_) => return Err(options.wrong("mode", "takes replay or record")),
        };
        Ok(ReplayOptions { mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ReplayMode, SpecError> {
        ReplayOptions::read(&text.parse().expect("well formed")).map(|options| options.mode)
    }

    #[test]
    fn the_forms_that_the_documentation_names() {
        let replay = |speed, times, record: Option<&str>| {
            Ok(ReplayMode::Replay { speed, times, record: record.map(str::to_owned) })
        };
        assert_eq!(read("pcap:in"), replay(Speed::Times(1.0), Some(1), None));
        assert_eq!(read("pcap:in?speed=0.5&loop=forever"), replay(Speed::Times(0.5), None, None));
        assert_eq!(
            read("pcap:in?speed=max&loop=3&record=out"),
            replay(Speed::Max, Some(3), Some("out"))
        );
        assert_eq!(read("pcap:out?mode=record"), Ok(ReplayMode::Record { layer: Layer::Ethernet }));
        assert_eq!(
            read("pcap:out?mode=record&layer=ip"),
            Ok(ReplayMode::Record { layer: Layer::Ip })
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, says) in [
            ("pcap:in?mode=play", "replay or record"),
            ("pcap:in?speed=-1", "speed=-1"),
            ("pcap:in?speed=inf", "above 0"),
            ("pcap:in?loop=often", "forever"),
            ("pcap:-?loop=2", "standard input"),
            ("pcap:in?layer=ip", "mode, speed, loop, record"),
            ("pcap:out?mode=record&speed=max", "mode, layer"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
