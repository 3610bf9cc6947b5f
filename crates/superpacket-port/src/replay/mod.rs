//! Capture files as ports: one that replays a capture, one that records what is sent.
//!
//! | port string | |
//! |---|---|
//! | `pcap:IN` | the frames of a capture arrive as they did when it was captured; what is sent is thrown away |
//! | `pcap:IN?record=OUT` | the same, and what is sent is recorded |
//! | `pcap:OUT?mode=record` | nothing arrives; what is sent is recorded |
//!
//! | option | | default |
//! |---|---|---|
//! | `mode=replay` | `replay` or `record` | `replay` |
//! | `speed=timed` | `timed`: by the capture's clock; a number: so many times as fast; `max`: as fast as it is polled | `timed` |
//! | `loop=N` | the capture is replayed so many times, one after the other; `forever` | 1 |
//! | `record=OUT` | the file to record in; its ending chooses the format, as everywhere (`.pcap`, `.pcapng`, `.gz`, `.zst`) | none |
//! | `layer=ethernet` | what a port with `mode=record` is sent: `ethernet` frames or `ip` packets | `ethernet` |
//!
//! The port has no offloads: whoever sends through it cuts super-packets and fills in checksums
//! first, so a recorded capture holds what a wire would have carried. Its file appears under its
//! name, whole, when the port and its transmitters have been dropped.
//!
//! The first frame of a capture decides whether the port carries Ethernet frames or IP packets (of
//! raw IP, BSD loopback or Linux cooked captures, whose own headers are taken off). Frames that
//! were cut short when they were captured, and those of other link types, are left out and counted
//! as `rx_errors`. At the end of the capture nothing more comes, and the port stays open. A file
//! that ends in mid-record ends there, with a warning.
//!
//! A capture that comes over a pipe (`-`, a named pipe) is read as it comes, on a thread of its
//! own, so that no poll waits for it. If no frame has come half a second after the port was opened,
//! the link type in the header decides what it carries, and without a header it carries Ethernet
//! frames.
//!
//! A capture that is recorded into a pipe (`-`, a named pipe that somebody reads) or a device is
//! written by a thread of its own. What waits for its reader is bounded (4 MiB): beyond that the
//! port is full. When the port is closed, the reader has half a second to take what waits.

mod frames;
mod options;
mod player;
mod recorder;
mod stream;
mod stream_writer;
mod timer;

use std::sync::Arc;

use crate::features::{Feature, FeatureSet};
use superpacket::packet::Layer;
use superpacket::segment::GsoSupport;

use self::frames::Errors;
use self::options::{Mode, Options};
use self::player::Player;
use self::recorder::{Discard, Recorder, RecorderEnd};
use super::{
    Capabilities, LinkState, MAX_SLICES, Port, PortCounters, PortError, PortSpec, PortState,
    Receive, SpecError, Transmit,
};
use superpacket_captures::file::same_file;

/// A capture file.
#[derive(Debug)]
pub(super) struct ReplayPort {
    text: String,
    layer: Layer,
    player: Option<Player>,
    errors: Arc<Errors>,
    recorder: Option<Arc<Recorder>>,
}

impl ReplayPort {
    /// Reads the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        Options::read(spec).map(drop)
    }

    /// Opens the capture, or begins one, that a port string of kind `pcap` names.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = Options::read(spec)?;
        let errors = Arc::new(Errors::default());
        let unsupported = |reason: &str| PortError::Unsupported {
            port: spec.name().into(),
            reason: reason.into(),
        };
        let (player, layer, recorder) = match options.mode {
            Mode::Record { layer } => {
                (None, layer, Some(Recorder::create(spec.name(), spec.device(), None, layer)?))
            }
            Mode::Replay { speed, times, record } => {
                if let Some(record) = &record
                    && same_file(spec.device(), record).map_err(|error| {
                        PortError::system(spec.name(), "compare the files", error)
                    })?
                {
                    return Err(unsupported("the capture would be recorded over itself"));
                }
                let player =
                    Player::open(spec.name(), spec.device(), speed, times, Arc::clone(&errors))?;
                let (layer, format) = (player.layer(), player.format());
                let recorder = record
                    .map(|path| Recorder::create(spec.name(), &path, format, layer))
                    .transpose()?;
                (Some(player), layer, recorder)
            }
        };
        Ok(ReplayPort {
            text: spec.name().into(),
            layer,
            player,
            errors,
            recorder: recorder.map(Arc::new),
        })
    }
}

impl Port for ReplayPort {
    fn name(&self) -> &str {
        &self.text
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            features: FeatureSet::all()
                .without(Feature::TxChecksumming)
                .without(Feature::TcpSegmentationOffload)
                .without(Feature::TxUdpSegmentation)
                .without(Feature::ReceiveHashing),
            gso: GsoSupport::NONE,
            max_slices: MAX_SLICES,
        }
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        self.player.take().into_iter().map(|player| Box::new(player) as _).collect()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        Ok(match &self.recorder {
            Some(recorder) => Box::new(RecorderEnd::new(Arc::clone(recorder))),
            None => Box::new(Discard),
        })
    }

    fn state(&mut self) -> PortState {
        PortState { link: LinkState::Up, mtu: 0 }
    }

    fn counters(&mut self) -> PortCounters {
        let tx_full = self.recorder.as_ref().map_or(0, |recorder| recorder.full());
        PortCounters { rx_errors: self.errors.count(), tx_full, ..PortCounters::default() }
    }
}
