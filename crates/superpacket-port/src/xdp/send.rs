//! Sending: frames are sent from the chunks in which they were received, or copied into chunks of
//! this queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::counts::XdpCounts;
use super::facts::PortFacts;
use super::option::MAX_CHUNKS;
use super::ring::{Consumer, Producer};
use super::umem::Umem;
use crate::{Outgoing, PortError, Region, Slice, StopReason, TxBatch, TxFrame};

/// Maximum number of checks whether all frames have been sent before a socket is closed. A device
/// usually sends its queue within a few milliseconds.
const SETTLE_CHECKS: u32 = 20;
/// Time between two of these checks.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// The sending half of an AF_XDP socket.
#[derive(Debug)]
pub(super) struct SendHalf {
    tx: Producer<XdpDesc>,
    completion: Consumer<u64>,
    /// The chunks for copied frames; `None` only after the queue is dropped.
    region: Option<Region>,
    umem: Arc<Umem>,
    /// Number of the first chunk of `region` in the UMEM.
    first: u32,
    /// The slots of `region` that are not in use.
    free: Vec<u32>,
    /// For each chunk of the UMEM, the number of this queue's uncompleted descriptors that refer to
    /// it as a receive chunk.
    posted: Vec<u16>,
    /// Number of descriptors that the kernel has not completed: at most the size of the completion
    /// ring.
    pending: u32,
    /// Number of entries of each ring of the socket.
    size: u32,
    /// Whether frames of several chunks may be sent.
    several: bool,
    /// Whether received bytes are never copied, even if the frame fits one chunk.
    gather: bool,
}

/// The location of the bytes of a frame to be sent.
enum FramePlacement {
    /// In one receive chunk, at this address.
    Chunk(u64),
    /// In several receive chunks, one per slice.
    Chunks,
    /// Partly in receive chunks. Each slice outside them is copied to a chunk.
    Gathered {
        /// Number of copied slices.
        copied: usize,
    },
    /// Not in receive chunks only, so the frame is copied to this number of chunks.
    Copy(usize),
}

impl SendHalf {
    /// Creates the sending half of a socket. `posted` must contain a zero for each chunk of the
    /// UMEM.
    pub(super) fn new(
        tx: Producer<XdpDesc>,
        completion: Consumer<u64>,
        region: Region,
        umem: Arc<Umem>,
        part: u32,
        several: bool,
        posted: Vec<u16>,
    ) -> Self {
        let slots = region.slots() as u32;
        SendHalf {
            posted,
            size: tx.room(),
            tx,
            completion,
            region: Some(region),
            umem,
            // The receive chunks of the queue come before its send chunks, and are equally many.
            first: part + slots,
            free: (0..slots).rev().collect(),
            pending: 0,
            several,
            gather: false,
        }
    }

    /// Sets whether received bytes are never copied, even if the frame fits one chunk.
    pub(super) const fn set_gather(&mut self, gather: bool) {
        self.gather = gather && self.several;
    }

    /// Waits briefly until the kernel has sent everything that it took from the TX ring, and
    /// returns whether it has. After the socket is closed, the kernel reads no further entries,
    /// except in zero-copy mode.
    pub(super) fn settle(&mut self) -> bool {
        let is_settled = |half: &mut Self| {
            half.reap();
            half.pending <= half.tx.untaken()
        };
        for _ in 0..SETTLE_CHECKS {
            if is_settled(self) {
                return true;
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
        is_settled(self)
    }

    /// Takes the chunks for copied frames, and the numbers of uncompleted descriptors per chunk of
    /// the UMEM, before the socket is closed.
    pub(super) fn close(&mut self) -> Option<(Region, Vec<u16>)> {
        self.region.take().map(|region| (region, std::mem::take(&mut self.posted)))
    }

    /// Processes completions: takes back the chunks whose frames the kernel has sent.
    pub(super) fn reap(&mut self) {
        let count = self.completion.available();
        if count == 0 {
            return;
        }
        let (size, slots) = (
            u64::from(self.umem.frame_size()),
            self.region.as_ref().map_or(0, Region::slots) as u32,
        );
        for index in 0..count {
            let chunk = (self.completion.peek(index) / size) as u32;
            match chunk.checked_sub(self.first) {
                Some(slot) if slot < slots => self.free.push(slot),
                _ => {
                    if let Some(posted) =
                        self.posted.get_mut(chunk as usize).filter(|posted| **posted != 0)
                    {
                        *posted -= 1;
                        self.umem.complete(chunk);
                    }
                }
            }
        }
        self.completion.release(count);
        self.pending = self.pending.saturating_sub(count);
    }

    /// Returns the number of descriptors that the kernel has not taken from the TX ring.
    pub(super) fn untaken(&self) -> u32 {
        self.tx.untaken()
    }

    /// Returns the maximum length of a frame that can be sent, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.umem.frame_size() as usize * if self.several { MAX_CHUNKS } else { 1 }
    }

    /// Writes the descriptors of a frame to the TX ring; returns whether there was room.
    pub(super) fn push(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        counts: &XdpCounts,
    ) -> bool {
        let slices = batch.slices(frame);
        let place = self.place(outgoing, slices, frame.length as usize);
        let descriptors = match place {
            FramePlacement::Chunk(_) => 1,
            FramePlacement::Chunks | FramePlacement::Gathered { .. } => slices.len(),
            FramePlacement::Copy(chunks) => chunks,
        } as u32;
        if self.tx.room() < descriptors || self.pending + descriptors > self.size {
            return false;
        }
        match place {
            FramePlacement::Chunk(address) => {
                self.post(address, frame.length, XdpDescOptions::empty())
            }
            FramePlacement::Chunks => {
                for (index, slice) in slices.iter().enumerate() {
                    let options = continued(index + 1 < slices.len());
                    // `place` has just located this slice.
                    if let Some(address) = self.umem.locate(outgoing.slice(*slice)) {
                        self.post(address, slice.length() as u32, options);
                    }
                }
            }
            FramePlacement::Copy(chunks) => {
                if self.free.len() < chunks || !self.copy(outgoing, slices, chunks) {
                    return false;
                }
                self.pending += descriptors;
                XdpCounts::add(&counts.sent_by_copy, 1);
                XdpCounts::add(&counts.bytes_copied, frame.length.into());
                return true;
            }
            FramePlacement::Gathered { copied } => {
                if self.free.len() < copied || !self.gather(outgoing, slices, counts) {
                    return false;
                }
                self.pending += descriptors;
                XdpCounts::add(&counts.sent_gathered, 1);
                return true;
            }
        }
        self.pending += descriptors;
        XdpCounts::add(&counts.sent_in_place, 1);
        true
    }

    fn place(&self, outgoing: &Outgoing, slices: &[Slice], length: usize) -> FramePlacement {
        let chunk = self.umem.frame_size() as usize;
        let locate = |slice: &Slice| self.umem.locate(outgoing.slice(*slice));
        match slices {
            [slice] => locate(slice)
                .map_or(FramePlacement::Copy(length.div_ceil(chunk)), FramePlacement::Chunk),
            _ if self.gather && slices.len() <= MAX_CHUNKS => {
                // Bytes outside receive chunks that exceed one chunk would need several.
                let (mut copied, mut fits) = (0, true);
                for slice in slices.iter().filter(|slice| locate(slice).is_none()) {
                    copied += 1;
                    fits &= slice.length() <= chunk;
                }
                match copied {
                    0 => FramePlacement::Chunks,
                    _ if fits && copied < slices.len() => FramePlacement::Gathered { copied },
                    _ => FramePlacement::Copy(length.div_ceil(chunk)),
                }
            }
            // The kernel allocates a page for each further descriptor, so copying is cheaper for a
            // frame that fits one chunk.
            _ if length > chunk
                && slices.len() <= MAX_CHUNKS
                && slices.iter().all(|slice| locate(slice).is_some()) =>
            {
                FramePlacement::Chunks
            }
            _ => FramePlacement::Copy(length.div_ceil(chunk)),
        }
    }

    /// Pushes a descriptor for bytes in a receive chunk.
    fn post(&mut self, addr: u64, len: u32, options: XdpDescOptions) {
        let chunk = (addr / u64::from(self.umem.frame_size())) as u32;
        self.umem.post(chunk);
        self.posted[chunk as usize] += 1;
        self.tx.push(XdpDesc { addr, len, options });
    }

    /// Writes a descriptor for each slice: received bytes stay in place, and each other slice is
    /// copied to a chunk. The caller has checked that enough chunks are free.
    fn gather(&mut self, outgoing: &Outgoing, slices: &[Slice], counts: &XdpCounts) -> bool {
        let size = u64::from(self.umem.frame_size());
        for (index, slice) in slices.iter().enumerate() {
            let (bytes, options) = (outgoing.slice(*slice), continued(index + 1 < slices.len()));
            if let Some(address) = self.umem.locate(bytes) {
                self.post(address, bytes.len() as u32, options);
                continue;
            }
            let Some(slot) = self.free.pop() else { return false };
            let chunk = self
                .region
                .as_mut()
                .and_then(|region| region.slot_mut(slot as usize)?.get_mut(..bytes.len()));
            let Some(chunk) = chunk else { return false };
            chunk.copy_from_slice(bytes);
            XdpCounts::add(&counts.bytes_copied, bytes.len() as u64);
            self.tx.push(XdpDesc {
                addr: u64::from(self.first + slot) * size,
                len: bytes.len() as u32,
                options,
            });
        }
        true
    }

    /// Copies a frame into `chunks` chunks; the caller has checked that enough are free.
    fn copy(&mut self, outgoing: &Outgoing, slices: &[Slice], chunks: usize) -> bool {
        let Some(region) = &mut self.region else { return false };
        let size = self.umem.frame_size() as usize;
        let mut slices = slices.iter().map(|slice| outgoing.slice(*slice));
        let mut rest: &[u8] = &[];
        for number in 1..=chunks {
            let Some(slot) = self.free.pop() else { return false };
            let Some(bytes) = region.slot_mut(slot as usize) else { return false };
            let mut filled = 0;
            while filled < size {
                if rest.is_empty() {
                    match slices.next() {
                        Some(slice) => rest = slice,
                        None => break,
                    }
                }
                let length = rest.len().min(size - filled);
                bytes[filled..filled + length].copy_from_slice(&rest[..length]);
                filled += length;
                rest = &rest[length..];
            }
            let addr = u64::from(self.first + slot) * size as u64;
            self.tx.push(XdpDesc { addr, len: filled as u32, options: continued(number < chunks) });
        }
        true
    }

    /// Publishes the pushed descriptors and, if necessary, wakes the kernel. Descriptors that the
    /// kernel cannot take yet stay in the ring.
    ///
    /// Returns the reason if the interface accepts no more frames.
    pub(super) fn kick(
        &mut self,
        socket: BorrowedFd<'_>,
        counts: &XdpCounts,
        facts: &PortFacts,
    ) -> Option<StopReason> {
        self.tx.publish();
        let mut left = self.tx.untaken();
        let mut patience = 1;
        while left != 0 && self.tx.needs_wakeup() {
            XdpCounts::add(&counts.tx_wakeups, 1);
            match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
                // The device was notified, and takes the descriptors itself.
                Ok(_) if facts.zero_copy => break,
                Err(Errno::NETDOWN) => return Some(StopReason::Down),
                Err(Errno::NXIO | Errno::NODEV | Errno::BADF | Errno::BADFD) => {
                    return Some(StopReason::Gone(PortError::Gone { port: facts.name.clone() }));
                }
                // The device's queue was full: the kernel dropped a frame, and the others follow.
                Err(Errno::BUSY) => XdpCounts::add(&counts.tx_full, 1),
                // `EAGAIN`: the kernel took 32 or as many as it could; the ring tells the number.
                // It skips and counts invalid descriptors.
                _ => {}
            }
            self.reap();
            let now = self.tx.untaken();
            if now >= left {
                if patience == 0 {
                    facts.stalled.store(true, Ordering::Relaxed);
                    break;
                }
                patience -= 1;
            }
            left = now;
        }
        None
    }
}

/// Returns the options of a descriptor: whether the frame continues in the next one.
fn continued(is_continued: bool) -> XdpDescOptions {
    if is_continued { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() }
}
