//! Frames into the TX ring: from the chunks that they came in where they lie in some, else copied
//! into chunks of this queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::counts::Counts;
use super::facts::Facts;
use super::option::MAX_CHUNKS;
use super::ring::{Consumer, Producer};
use super::umem::Umem;
use crate::{Outgoing, PortError, Region, Slice, Stop, TxBatch, TxFrame};

/// How often a socket that is about to be closed looks for completions, and how long it waits in
/// between: what lies in a device's queue is usually sent within a few milliseconds.
const SETTLE_LOOKS: u32 = 20;
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// The sending half of a socket.
#[derive(Debug)]
pub(super) struct SendHalf {
    tx: Producer<XdpDesc>,
    completion: Consumer<u64>,
    /// The chunks that are copied to; gone only when the queue is.
    region: Option<Region>,
    umem: Arc<Umem>,
    /// The first of them, counted from the UMEM's start.
    first: u32,
    /// The slots of `region` that no frame lies in.
    free: Vec<u32>,
    /// For each chunk of the UMEM that is received into, how many descriptors of this queue refer
    /// to it.
    posted: Vec<u16>,
    /// Descriptors that are not completed: at most as many as the completion ring holds.
    pending: u32,
    /// Entries of the rings.
    size: u32,
    /// Frames of several chunks may be sent.
    several: bool,
    /// What was received is not copied, also of frames that fit one chunk.
    gather: bool,
}

/// Where a frame that is to be sent lies.
enum Place {
    /// In the chunk that it was received in, at this address.
    Chunk(u64),
    /// In as many of them as it has slices.
    Chunks,
    /// Partly in them, and partly elsewhere, of which each slice is copied to a chunk.
    Gathered {
        /// Slices that are copied.
        copied: usize,
    },
    /// Elsewhere: it is copied to this many.
    Copy(usize),
}

impl SendHalf {
    /// `posted` has a zero for each of the UMEM's chunks.
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
            // Those that are received into come first, and are as many.
            first: part + slots,
            free: (0..slots).rev().collect(),
            pending: 0,
            several,
            gather: false,
        }
    }

    /// Is what was received sent from where it lies, also of frames that fit one chunk?
    pub(super) const fn set_gather(&mut self, gather: bool) {
        self.gather = gather && self.several;
    }

    /// Waits for a moment until the kernel has sent all that it has taken from the TX ring, and
    /// returns whether it has. What it has not taken it does not read any more once the socket is
    /// closed, unless the device itself moves the frames.
    pub(super) fn settle(&mut self) -> bool {
        let is_settled = |half: &mut Self| {
            half.reap();
            half.pending <= half.tx.untaken()
        };
        for _ in 0..SETTLE_LOOKS {
            if is_settled(self) {
                return true;
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
        is_settled(self)
    }

    /// Hands the memory over, and for each chunk the number of descriptors that are not completed:
    /// the socket is about to be closed.
    pub(super) fn close(&mut self) -> Option<(Region, Vec<u16>)> {
        self.region.take().map(|region| (region, std::mem::take(&mut self.posted)))
    }

    /// Takes back what the kernel has sent.
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

    /// Descriptors that the kernel has not taken from the TX ring.
    pub(super) fn untaken(&self) -> u32 {
        self.tx.untaken()
    }

    /// The longest frame that fits, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.umem.frame_size() as usize * if self.several { MAX_CHUNKS } else { 1 }
    }

    /// Writes descriptors for a frame, and says whether there was room.
    pub(super) fn push(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        counts: &Counts,
    ) -> bool {
        let slices = batch.slices(frame);
        let place = self.place(outgoing, slices, frame.length as usize);
        let descriptors = match place {
            Place::Chunk(_) => 1,
            Place::Chunks | Place::Gathered { .. } => slices.len(),
            Place::Copy(chunks) => chunks,
        } as u32;
        if self.tx.room() < descriptors || self.pending + descriptors > self.size {
            return false;
        }
        match place {
            Place::Chunk(address) => self.post(address, frame.length, XdpDescOptions::empty()),
            Place::Chunks => {
                for (index, slice) in slices.iter().enumerate() {
                    let options = continued(index + 1 < slices.len());
                    // It was found a moment ago.
                    if let Some(address) = self.umem.locate(outgoing.slice(*slice)) {
                        self.post(address, slice.length() as u32, options);
                    }
                }
            }
            Place::Copy(chunks) => {
                if self.free.len() < chunks || !self.copy(outgoing, slices, chunks) {
                    return false;
                }
                self.pending += descriptors;
                Counts::add(&counts.sent_by_copy, 1);
                Counts::add(&counts.bytes_copied, frame.length.into());
                return true;
            }
            Place::Gathered { copied } => {
                if self.free.len() < copied || !self.gather(outgoing, slices, counts) {
                    return false;
                }
                self.pending += descriptors;
                Counts::add(&counts.sent_gathered, 1);
                return true;
            }
        }
        self.pending += descriptors;
        Counts::add(&counts.sent_in_place, 1);
        true
    }

    fn place(&self, outgoing: &Outgoing, slices: &[Slice], length: usize) -> Place {
        let chunk = self.umem.frame_size() as usize;
        let locate = |slice: &Slice| self.umem.locate(outgoing.slice(*slice));
        match slices {
            [slice] => locate(slice).map_or(Place::Copy(length.div_ceil(chunk)), Place::Chunk),
            _ if self.gather && slices.len() <= MAX_CHUNKS => {
                // Bytes of this program's own, longer than a chunk, would take several.
                let (mut copied, mut fits) = (0, true);
                for slice in slices.iter().filter(|slice| locate(slice).is_none()) {
                    copied += 1;
                    fits &= slice.length() <= chunk;
                }
                match copied {
                    0 => Place::Chunks,
                    _ if fits && copied < slices.len() => Place::Gathered { copied },
                    _ => Place::Copy(length.div_ceil(chunk)),
                }
            }
            // The kernel takes a page for each further descriptor, so a frame that fits one chunk
            // is better copied.
            _ if length > chunk
                && slices.len() <= MAX_CHUNKS
                && slices.iter().all(|slice| locate(slice).is_some()) =>
            {
                Place::Chunks
            }
            _ => Place::Copy(length.div_ceil(chunk)),
        }
    }

    /// A descriptor for bytes in a chunk that was received into.
    fn post(&mut self, addr: u64, len: u32, options: XdpDescOptions) {
        let chunk = (addr / u64::from(self.umem.frame_size())) as u32;
        self.umem.post(chunk);
        self.posted[chunk as usize] += 1;
        self.tx.push(XdpDesc { addr, len, options });
    }

    /// Writes a descriptor for each slice: what was received stays where it lies, and each of the
    /// others is copied to a chunk, of which as many are free.
    fn gather(&mut self, outgoing: &Outgoing, slices: &[Slice], counts: &Counts) -> bool {
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
            Counts::add(&counts.bytes_copied, bytes.len() as u64);
            self.tx.push(XdpDesc {
                addr: u64::from(self.first + slot) * size,
                len: bytes.len() as u32,
                options,
            });
        }
        true
    }

    /// Copies a frame into `chunks` chunks, of which as many are free.
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

    /// Publishes what was pushed, and makes the kernel send it where it waits for that. What it
    /// cannot take now stays in the ring.
    ///
    /// The result says why the interface takes nothing more, if so.
    pub(super) fn kick(
        &mut self,
        socket: BorrowedFd<'_>,
        counts: &Counts,
        facts: &Facts,
    ) -> Option<Stop> {
        self.tx.publish();
        let mut left = self.tx.untaken();
        let mut patience = 1;
        while left != 0 && self.tx.needs_wakeup() {
            Counts::add(&counts.tx_wakeups, 1);
            match rustix::net::send(socket, &[], SendFlags::DONTWAIT) {
                // The device was told, and takes them by itself.
                Ok(_) if facts.zero_copy => break,
                Err(Errno::NETDOWN) => return Some(Stop::Down),
                Err(Errno::NXIO | Errno::NODEV | Errno::BADF | Errno::BADFD) => {
                    return Some(Stop::Gone(PortError::Gone { port: facts.name.clone() }));
                }
                // The device's own queue was full: it dropped a frame, and the others follow.
                Err(Errno::BUSY) => Counts::add(&counts.tx_full, 1),
                // `EAGAIN`: it took 32, or as many as it could; the ring says how many. Wrong
                // descriptors are skipped and counted by the kernel.
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

/// The options of a descriptor: whether the frame goes on in the next.
fn continued(is_continued: bool) -> XdpDescOptions {
    if is_continued { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() }
}
