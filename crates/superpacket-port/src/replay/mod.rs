//! Ports on capture files, which replay a capture or record the frames sent.
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
//! | `speed=timed` | `timed`: by the capture's clock; a number: that many times as fast; `max`: as fast as the port is polled | `timed` |
//! | `loop=N` | the capture is replayed N times, one after the other; `forever`: without end | 1 |
//! | `record=OUT` | the file to record in; its ending chooses the format, as everywhere (`.pcap`, `.pcapng`, `.gz`, `.zst`) | none |
//! | `layer=ethernet` | what a port with `mode=record` is sent: `ethernet` frames or `ip` packets | `ethernet` |
//!
//! The port has no offloads: its users segment super-packets and complete checksums, so a recorded
//! capture contains what a wire would have carried. The complete file gets its name when the port
//! and its transmitters have been dropped.
//!
//! The first frame of a capture decides whether the port carries Ethernet frames or IP packets. IP
//! packets come from raw IP, BSD loopback or Linux cooked captures, whose headers are removed.
//! Frames that were truncated by the capture, or have other link types, are skipped and counted as
//! `rx_errors`. At the end of the capture the port stays open, but no more packets arrive. A file
//! that ends within a record ends there, with a warning.
//!
//! A capture from a pipe (`-`, a named pipe) is read by a separate thread, so that no poll blocks.
//! If no frame arrives within half a second after the port was opened, the link type in the header
//! decides; without a header, the port carries Ethernet frames.
//!
//! A capture recorded into a pipe (`-`, a named pipe with a reader) or a device is written by a
//! separate thread. At most 4 MiB wait for the reader; beyond that the port is full. When the port
//! is closed, the reader has half a second to take the rest.

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

use self::frames::SkippedFrames;
use self::options::{ReplayMode, ReplayOptions};
use self::player::Player;
use self::recorder::{Discard, Recorder, RecorderEnd};
use super::{
    Capabilities, LinkState, MAX_SLICES, Port, PortCounters, PortError, PortSpec, PortState,
    Receive, SpecError, Transmit,
};
use superpacket_captures::file::same_file;

/// A port on a capture file.
#[derive(Debug)]
pub(super) struct ReplayPort {
    text: String,
    layer: Layer,
    player: Option<Player>,
    errors: Arc<SkippedFrames>,
    recorder: Option<Arc<Recorder>>,
}

impl ReplayPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        ReplayOptions::read(spec).map(drop)
    }

    /// Opens the capture file that a port string of kind `pcap` names, or creates it.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = ReplayOptions::read(spec)?;
        let errors = Arc::new(SkippedFrames::default());
        let unsupported = |reason: &str| PortError::Unsupported {
            port: spec.name().into(),
            reason: reason.into(),
        };
        let (player, layer, recorder) = match options.mode {
            ReplayMode::Record { layer } => {
                (None, layer, Some(Recorder::create(spec.name(), spec.device(), None, layer)?))
            }
            ReplayMode::Replay { speed, times, record } => {
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
