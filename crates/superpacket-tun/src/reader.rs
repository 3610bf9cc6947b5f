//! What is read from a device, cut into packets for a tunnel.

use std::io;

use superpacket::segment::{Plan, Portion, SegmentBuffers, SegmentCounters};
use superpacket::{Framing, GsoPacket, Layer, SegmentError, SegmentOptions, Segmenter, SplitError};

use crate::Device;

/// Bytes of the longest read: a header, an Ethernet header with two VLAN tags, an IP packet, and
/// one byte by which a longer one would show.
const LONGEST: usize = 24 + 22 + 65_535 + 1;

/// Reads packets from one queue of a device. What the kernel hands over as a super-packet comes out
/// as the packets that a wire would carry, with complete checksums.
#[derive(Debug)]
pub struct Reader<D> {
    device: D,
    framing: Option<Framing>,
    segmenter: Segmenter,
    buffer: Box<[u8]>,
    /// What of the last read found no room.
    waiting: Option<Waiting>,
    counters: ReaderCounters,
}

/// The rest of a read, which lies in the reader's buffer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Bytes of the read.
    length: usize,
    /// Packets of it that the caller has.
    done: u32,
}

/// What a [`Reader`] has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderCounters {
    /// Packets that the device gave, super-packets counted once.
    pub reads: u64,
    /// Packets that came out.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Of the reads, those that were cut into more than one packet.
    pub super_packets: u64,
    /// Of the reads, those that gave nothing, since their header contradicts them or nothing can
    /// cut them.
    pub malformed: u64,
    /// Of the reads, those whose rest was [discarded](Reader::discard).
    pub discarded: u64,
    /// Packets that the kernel dropped because it could not describe or hand them over. They are
    /// not among the reads.
    pub dropped: u64,
}

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The device has nothing to read, or does not work.
    #[error("reading from the TUN device: {0}")]
    Device(#[source] io::Error),
    /// The caller's buffers take not even one packet of what was read. It is kept: the next call
    /// gives it to the buffers that it has, and [`Reader::discard`] drops it.
    #[error("the buffers take not even one packet of what was read: {0}")]
    NoRoom(#[source] SegmentError),
}

impl ReadError {
    /// Is there nothing to read now?
    pub fn would_block(&self) -> bool {
        matches!(self, ReadError::Device(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Device(error) => error,
            ReadError::NoRoom(_) => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

impl<D: Device> Reader<D> {
    /// Reads from a device whose packets have a header of this framing, or none before them.
    pub fn new(device: D, framing: Option<Framing>) -> Self {
        Reader {
            device,
            framing,
            segmenter: Segmenter::new(),
            buffer: vec![0; LONGEST].into_boxed_slice(),
            waiting: None,
            counters: ReaderCounters::default(),
        }
    }

    /// Reads once, and writes the packets of what was read into `buffers`. Waits until there is
    /// something to read.
    ///
    /// If the buffers do not take all packets of a super-packet, the call writes as many as fit,
    /// and the next call goes on with the others: a fixed pool of buffers may be smaller than a
    /// super-packet. [`has_more`](Self::has_more) tells so.
    ///
    /// Returns how many packets there are and how long, or `None` if the read has none for the
    /// tunnel: its header contradicts it, or the kernel dropped it. That is counted
    /// ([`counters`](Self::counters)), and the next call goes on with the next packet.
    ///
    /// The buffers may be a `Vec<u8>`, or a `BytesMut` with `superpacket`'s feature `bytes`, that
    /// takes the packets back to back behind what it holds,
    /// [`EachBuffer`](superpacket::EachBuffer) for buffers of a pool,
    /// [`NewBuffers`](crate::NewBuffers) for one that is made for each packet,
    /// [`BackToBack`](superpacket::BackToBack) for a slice, or a
    /// [`SegmentBuffers`] of the caller's own.
    ///
    /// ```no_run
    /// # #[cfg(any(target_os = "linux", target_os = "android"))] {
    /// use superpacket_tun::{EachBuffer, Tun};
    ///
    /// let (mut reader, writer) = Tun::builder("vpn0").open()?.split();
    /// # let _: superpacket_tun::Writer<_, Vec<u8>> = writer;
    /// // A super-packet of 112 packets comes in three calls.
    /// let (mut pool, mut sizes) = (vec![[0; 1500]; 46], [0; 46]);
    /// loop {
    ///     let mut buffers = EachBuffer::new(&mut pool, 0, &mut sizes);
    ///     reader.read_into(&mut buffers)?;
    ///     println!("{} packets, more: {}", buffers.used(), reader.has_more());
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReadError`]; nothing is lost.
    pub fn read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<Plan>, ReadError> {
        loop {
            match self.try_read_into(buffers) {
                Err(error) if error.would_block() => {
                    self.device.wait_readable().map_err(ReadError::Device)?
                }
                read => return read,
            }
        }
    }

    /// As [`read_into`](Self::read_into), without waiting. An event loop calls it again while the
    /// reader [has more](Self::has_more), before it waits for the device.
    ///
    /// # Errors
    /// [`ReadError`], for which [`would_block`](ReadError::would_block) holds if there is nothing
    /// to read; nothing is lost.
    pub fn try_read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<Plan>, ReadError> {
        let Waiting { length, done } = match self.waiting.take() {
            Some(waiting) => waiting,
            None => match self.device.read(&mut self.buffer) {
                Ok(length) => {
                    self.counters.reads += 1;
                    Waiting { length, done: 0 }
                }
                Err(error) if is_of_packet(&error) => {
                    self.counters.dropped += 1;
                    return Ok(None);
                }
                Err(error) => return Err(ReadError::Device(error)),
            },
        };
        let read = self.buffer.get(..length.min(LONGEST - 1)).unwrap_or(&[]);
        let split = match self.framing {
            Some(framing) => self.segmenter.split_portion(framing, read, done, buffers),
            None => pass(&mut self.segmenter, read, buffers),
        };
        match split {
            // A header without a packet.
            Ok(Portion { plan, .. }) if plan.segment_length == 0 => {
                self.counters.malformed += 1;
                Ok(None)
            }
            Ok(Portion { plan, left, .. }) => {
                self.counters.packets += u64::from(plan.segments);
                self.counters.bytes += plan.total_length() as u64;
                self.counters.super_packets += u64::from(done == 0 && plan.segments + left > 1);
                if left != 0 {
                    self.waiting = Some(Waiting { length, done: done + plan.segments });
                }
                Ok(Some(plan))
            }
            Err(SplitError::Segment(
                error
                @ (SegmentError::OutputTooSmall { .. } | SegmentError::TooManySegments { .. }),
            )) => {
                self.waiting = Some(Waiting { length, done });
                Err(ReadError::NoRoom(error))
            }
            Err(_) => {
                self.counters.malformed += 1;
                Ok(None)
            }
        }
    }

    /// Returns whether packets of the last read found no room: the next call gives them, and does
    /// not wait for the device.
    pub const fn has_more(&self) -> bool {
        self.waiting.is_some()
    }

    /// Drops the packets of the last read that found no room, and returns whether there were any.
    pub fn discard(&mut self) -> bool {
        let had_more = self.waiting.take().is_some();
        self.counters.discarded += u64::from(had_more);
        had_more
    }

    /// What has been read so far.
    pub const fn counters(&self) -> &ReaderCounters {
        &self.counters
    }

    /// What the engine has cut so far, and why it did not.
    pub const fn segmentation(&self) -> &SegmentCounters {
        self.segmenter.counters()
    }

    /// The device that is read from.
    pub const fn device(&self) -> &D {
        &self.device
    }
}

/// Passes a packet of a device without headers, as it is.
fn pass(
    segmenter: &mut Segmenter,
    read: &[u8],
    buffers: &mut (impl SegmentBuffers + ?Sized),
) -> Result<Portion, SplitError> {
    let packet = GsoPacket::uncut(std::slice::from_ref(&read)).with_layer(Layer::Ip);
    Ok(segmenter.segment_portion(&packet, &SegmentOptions::default(), 0, buffers)?)
}

/// Does the error tell of one packet, which the kernel has dropped (`tun_put_user`), and not of the
/// device?
fn is_of_packet(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}
