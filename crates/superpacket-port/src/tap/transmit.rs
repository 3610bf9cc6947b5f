//! The sending end of a TAP or TUN port, which makes one `writev` call per frame: the virtio header
//! and the frame's slices.

use std::io::{self, IoSlice};
use std::sync::Arc;

use rustix::io::Errno;
use superpacket::virtio::{Format, Header, Offload, VirtioError};
use superpacket::wire::MAX_HEADER;

use super::device::TapDevice;
use super::outer_checksum::FrameStart;
use crate::{LinkState, Outgoing, Progress, StopReason, Transmit, TxBatch, TxFrame};

/// Number of slices that are kept on the stack. A super-packet of 64 KB merged from frames of 1,500
/// bytes has 46.
const INLINE: usize = 64;

/// A sending end of a TAP or TUN port. Any number of ends may write to one queue. The kernel
/// returns a flow's packets through the queue that the flow was written to.
#[derive(Debug)]
pub(super) struct TapTransmitter {
    device: Arc<TapDevice>,
    queue: u16,
}

impl TapTransmitter {
    pub(super) const fn new(device: Arc<TapDevice>, queue: u16) -> Self {
        TapTransmitter { device, queue }
    }

    fn send(
        &self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), StopReason> {
        // The header of a plain frame consists of zeros.
        let mut header = [0; Format::LONGEST];
        let mut front = None;
        if !frame.is_plain() {
            front = self.describe(outgoing, batch, frame, &mut header).map_err(|error| {
                StopReason::Offload(io::Error::new(io::ErrorKind::InvalidInput, error))
            })?;
        }
        let header = &header[..self.device.format.length()];
        let slices = batch.slices(frame);
        let result = if let Some(front) = &front {
            let mut rest = front.bytes().len();
            let behind = slices.iter().map(|slice| {
                let bytes = outgoing.slice(*slice);
                let skipped = rest.min(bytes.len());
                rest -= skipped;
                &bytes[skipped..]
            });
            let all: Vec<_> =
                [header, front.bytes()].into_iter().chain(behind).map(IoSlice::new).collect();
            self.write(&all)
        } else if slices.len() < INLINE {
            let mut all = [IoSlice::new(&[]); INLINE];
            all[0] = IoSlice::new(header);
            for (to, slice) in all[1..].iter_mut().zip(slices) {
                *to = IoSlice::new(outgoing.slice(*slice));
            }
            self.write(&all[..=slices.len()])
        } else {
            let all: Vec<_> = std::iter::once(header)
                .chain(slices.iter().map(|slice| outgoing.slice(*slice)))
                .map(IoSlice::new)
                .collect();
            self.write(&all)
        };
        result.map_err(|error| self.stop(frame, error))
    }

    /// Writes the frame's virtio header to `header`. If the frame needs another outer UDP checksum,
    /// returns the frame's first bytes with it.
    fn describe(
        &self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        header: &mut [u8],
    ) -> Result<Option<FrameStart>, VirtioError> {
        let offload = Offload::new(frame.checksum, frame.gso);
        let mut scratch = [0; MAX_HEADER];
        let head = batch.head(outgoing, frame, &mut scratch);
        let described = Header::describe(
            &offload,
            self.device.format,
            head,
            frame.length as usize,
            frame.layer,
        )?;
        described.write(header, self.device.format, self.device.order)?;
        Ok(FrameStart::of(&described, head, frame.length as usize, frame.layer))
    }

    #[inline]
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        // The kernel takes a packet completely or not at all.
        rustix::io::retry_on_intr(|| rustix::io::writev(self.device.queue(self.queue), slices))
            .map(drop)
    }

    #[cold]
    fn stop(&self, frame: &TxFrame, error: Errno) -> StopReason {
        let counters = &self.device.counters;
        match error {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => counters.full(),
            Errno::BADFD | Errno::NODEV | Errno::NXIO => StopReason::Gone(self.device.gone()),
            Errno::NETDOWN => StopReason::Down,
            // The kernel also returns EIO if the interface is down.
            Errno::IO if self.device.state().link != LinkState::Up => StopReason::Down,
            Errno::MSGSIZE => StopReason::TooLong,
            Errno::INVAL | Errno::IO | Errno::OPNOTSUPP if !frame.is_plain() => {
                counters.refuse_offload(error)
            }
            _ => StopReason::Refused(error.into()),
        }
    }
}

impl Transmit for TapTransmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        for (sent, frame) in batch.frames()[from..].iter().enumerate() {
            if let Err(stopped) = self.send(outgoing, batch, frame) {
                return Progress { sent, stopped: Some(stopped) };
            }
        }
        Progress { sent: batch.frames().len() - from, stopped: None }
    }

    fn queue(&self) -> u16 {
        self.queue
    }
}
