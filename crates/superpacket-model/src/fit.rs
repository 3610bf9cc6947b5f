//! Checks whether a port that is to send a frame supports the frame's offloads and length.

use std::io;

use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::GsoKind;
use superpacket::wire::{Layout, MAX_HEADER, ethernet};
use superpacket_port::features::{Feature, FeatureSet};
use superpacket_port::{Outgoing, StopReason, TxBatch, TxFrame};

/// Maximum number of VLAN tags per frame that are not counted towards the MTU.
pub(crate) const MAX_TAGS: usize = 2;

/// Length of a VLAN tag in bytes.
pub(crate) const TAG: usize = 4;

/// Returns the length in bytes of a frame's link header and its VLAN tags, which the MTU does not
/// include. `head` is the start of the frame.
pub(crate) fn link_header(head: &[u8], layer: Layer) -> usize {
    let ethertype = |tags: usize| {
        let place = ethernet::ETHERTYPE + tags * TAG;
        head.get(place..place + 2)
            .is_some_and(|field| ethernet::is_vlan(u16::from_be_bytes([field[0], field[1]])))
    };
    match layer {
        Layer::Ip => 0,
        Layer::Ethernet => {
            ethernet::HEADER_LENGTH
                + (0..MAX_TAGS).take_while(|&tags| ethertype(tags)).count() * TAG
        }
    }
}

/// The offloads and sizes that a memory port or a model NIC accepts when it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortLimits {
    pub(crate) features: FeatureSet,
    pub(crate) max_slices: usize,
    /// Maximum length of an IP packet in bytes; 0: no limit.
    pub(crate) mtu: u32,
}

impl PortLimits {
    /// Checks that the port accepts the frame. Returns the header layout if the frame is a
    /// super-packet, otherwise `None`.
    ///
    /// # Errors
    /// The [`StopReason`] that the sender reports for this frame.
    pub(crate) fn check(
        &self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<Option<Layout>, StopReason> {
        if batch.slices(frame).len() > self.max_slices {
            return Err(StopReason::Refused(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the port takes a frame in one piece",
            )));
        }
        if matches!(frame.checksum, RxChecksum::Partial { .. })
            && !self.features.contains(Feature::TxChecksumming)
        {
            return Err(offload("the port fills in no checksums"));
        }
        let mtu = if self.mtu == 0 { usize::MAX } else { self.mtu as usize };
        let length = frame.length as usize;
        let mut scratch = [0; MAX_HEADER];
        let Some(gso) = frame.gso else {
            // The link header is only read if the whole frame is longer than the MTU.
            let fits = length <= mtu
                || length
                    - link_header(batch.head(outgoing, frame, &mut scratch), frame.layer)
                        .min(length)
                    <= mtu;
            return if fits { Ok(None) } else { Err(StopReason::TooLong) };
        };
        let feature = match gso.kind {
            GsoKind::Udp | GsoKind::UdpFragments => Feature::TxUdpSegmentation,
            _ => Feature::TcpSegmentationOffload,
        };
        if !self.features.contains(feature) {
            return Err(offload("the port cuts no such super-packets"));
        }
        let head = batch.head(outgoing, frame, &mut scratch);
        let layout = gso.kind.parse(head, length, frame.layer, frame.checksum);
        let layout = layout.map_err(|_| offload("the headers of a super-packet cannot be read"))?;
        // The size of an IP fragment includes the UDP header.
        let headers =
            if gso.kind == GsoKind::UdpFragments { layout.transport } else { layout.payload };
        let segment = usize::from(headers - layout.outermost()) + gso.size.get();
        if segment.min(length) > mtu {
            return Err(StopReason::TooLong);
        }
        Ok(Some(layout))
    }
}

/// Returns the [`StopReason`] for a frame that requests an unsupported offload, with the reason.
pub(crate) fn offload(why: &'static str) -> StopReason {
    StopReason::Offload(io::Error::new(io::ErrorKind::InvalidInput, why))
}
