//! Merges packets from a tunnel and writes them to a device.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem;

use superpacket::aggregate::{Borrowed, BufferIndex};
use superpacket::order::Order;
use superpacket::super_packet::Piece;
use superpacket::{
    AggregateCounters, BatchAggregator, Framing, GsoKind, HashKey, Policy, SuperPacket,
};

use crate::switch::{Refusal, Settings, Switches};
use crate::{Device, OrderKey};

/// Maximum payload slices of one `writev` (`UIO_MAXIOV`), without the device's header and the
/// packet's header.
const MAX_PIECES: u32 = 1024 - 2;

/// A writer of packets to one queue of a device. Consecutive packets of a flow are merged, and
/// written by one vectored write from the buffers in which they were pushed.
///
/// [`push`](Self::push) queues, [`flush`](Self::flush) writes. Packets of a flow leave in the order
/// in which they were pushed. A flush writes all queued packets and drops the buffers: push the
/// packets of one receive call, then flush.
///
/// # Packets that overtook each other
///
/// If a tunnel counts its packets, [`push_in_order`](Self::push_in_order) passes the count. A flush
/// first puts the queued packets in the order in which they were sent, so that packets merge even
/// if they were reordered on their way or by threads that decrypt them. A flush never waits for a
/// missing packet.
///
/// # If the device refuses super-packets
///
/// Some kernels announce an offload and then refuse its packets with `EINVAL`. The packets of such
/// a super-packet are then written one by one, in its place. If the device accepts them, the kind
/// is switched off for all writers of the device; [`Switches::refusals`] and a
/// [notice](Self::set_notice) report this once.
///
/// # Errors
///
/// | error | the packet | the packets behind it |
/// |---|---|---|
/// | [`WouldBlock`](io::ErrorKind::WouldBlock), from [`try_flush`](Self::try_flush) only | stays | stay |
/// | a single packet is not an IP packet, or the device does not accept it (`EINVAL`, `EMSGSIZE`) | dropped, counted as [rejected](WriterCounters::rejected) | written; the flush returns the first such error |
/// | any other: the interface is down (`EIO`), gone (`EBADFD`), memory is short (`ENOBUFS`) | stays | stay |
///
/// Packets that stay are written by the next flush, before all that have been pushed since. After
/// an error of the third kind, call [`flush_lossy`](Self::flush_lossy), or
/// [`run_lossy`](crate::QueuedWriter::run_lossy) with a queued writer; otherwise the queue grows.
pub struct Writer<D, B> {
    aggregator: BatchAggregator,
    /// The packets that the flush in progress writes.
    batch: Vec<B>,
    /// The packets that were pushed after the flush in progress began.
    queue: Vec<B>,
    /// The keys of the packets in `queue`, up to the last packet that has a key.
    keys: Vec<Option<OrderKey>>,
    order: Order,
    output: DeviceWriter<D>,
}

/// Counters of a [`Writer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterCounters {
    /// Packets that the device accepted, single or in a super-packet.
    pub packets: u64,
    /// Total length in bytes of the packets counted in `packets`, before they were merged.
    pub bytes: u64,
    /// Writes that the device accepted: super-packets and single packets.
    pub writes: u64,
    /// Number of super-packets written.
    pub super_packets: u64,
    /// Writes of single packets by the senders of a queue, because the packets came alone
    /// ([`QueuedWriter::counters`](crate::QueuedWriter::counters)).
    pub direct: u64,
    /// Super-packets whose packets were written one by one, because their kind or destination is
    /// switched off or the device refused them.
    pub separated: u64,
    /// Number of super-packets that the device refused.
    pub refused: u64,
    /// Single packets that the device refused, and that were dropped.
    pub rejected: u64,
    /// Writes that failed because the device had no room for more packets.
    pub full: u64,
}

impl<D: Device, B: AsRef<[u8]>> Writer<D, B> {
    /// Returns a writer to a device whose packets begin with the `virtio_net_hdr` that `framing`
    /// describes. `None` means that packets have no such header: then no packets merge.
    pub fn new(device: D, framing: Option<Framing>, switches: Switches) -> Self {
        let (version, settings) = switches.snapshot();
        // Without a framing the aggregator is not used.
        let aggregator = BatchAggregator::framed(
            framing.unwrap_or(Framing::TUN),
            policy(&settings),
            HashKey::random(),
        );
        let output = DeviceWriter {
            device,
            framing,
            switches,
            version,
            settings,
            progress: WriteProgress::default(),
            error: None,
            slices: Vec::new(),
            counters: WriterCounters::default(),
            notice: None,
        };
        Writer {
            aggregator,
            batch: Vec::new(),
            queue: Vec::new(),
            keys: Vec::new(),
            order: Order::new(),
            output,
        }
    }

    /// Queues a packet. The next flush writes and drops it.
    #[inline]
    pub fn push(&mut self, packet: B) {
        self.queue.push(packet);
    }

    /// Queues a packet with a key that tells when it was sent: a counter of its tunnel, and a
    /// stream, such as the peer. The next flush puts the packets of a stream in order. Packets that
    /// were pushed without a key stay at their places.
    #[inline]
    pub fn push_in_order(&mut self, packet: B, key: OrderKey) {
        self.keys.resize(self.queue.len(), None);
        self.keys.push(Some(key));
        self.queue.push(packet);
    }

    /// Merges and writes all queued packets. Waits while the device is full.
    ///
    /// # Errors
    /// Any error of the device; see [above](Self#errors).
    pub fn flush(&mut self) -> io::Result<()> {
        loop {
            match self.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.output.device.wait_writable()?
                }
                result => return result,
            }
        }
    }

    /// Like [`flush`](Self::flush), but drops the packets that could not be written because of an
    /// error, as a full queue would.
    ///
    /// # Errors
    /// Any error of the device.
    pub fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush();
        self.clear();
        result
    }

    /// Like [`flush`](Self::flush), but does not wait.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the device is full: the next call continues.
    /// Any other error of the device; see [above](Self#errors).
    pub fn try_flush(&mut self) -> io::Result<()> {
        loop {
            let Self { aggregator, batch, queue, keys, order, output } = self;
            let is_continued = !batch.is_empty();
            if !is_continued {
                if queue.is_empty() {
                    return output.error.take().map_or(Ok(()), Err);
                }
                mem::swap(batch, queue);
                if !keys.is_empty() {
                    order.restore(batch, |index| keys.get(index).copied().flatten());
                    keys.clear();
                }
                output.progress = WriteProgress::default();
                if output.update_settings() {
                    aggregator.set_policy(policy(&output.settings));
                }
                output.progress.merges =
                    output.framing.is_some() && output.settings.on.has_any_kind();
            }
            if !output.progress.merges {
                output.write_each(0..batch.len(), batch)?;
            } else if is_continued {
                aggregator.resume(batch, |packet| output.take(&packet, batch))?;
            } else {
                aggregator.poll(batch, |packet| output.take(&packet, batch))?;
            }
            batch.clear();
        }
    }

    /// Returns the number of pushed packets that are not written or dropped yet. If a super-packet
    /// or a batch is partly written, all of its packets count.
    pub fn len(&self) -> usize {
        self.batch.len() + self.queue.len()
    }

    /// Returns whether all pushed packets are written or dropped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all queued packets. Returns their number, as counted by [`len`](Self::len).
    pub fn clear(&mut self) -> usize {
        let count = self.len();
        self.batch.clear();
        self.queue.clear();
        self.keys.clear();
        self.output.error = None;
        count
    }

    /// Sets a callback that is called when a kind of super-packets is switched off because the
    /// device has refused it, for example to write a log line.
    pub fn set_notice(&mut self, notice: impl FnMut(&Refusal) + Send + 'static) {
        self.output.notice = Some(Box::new(notice));
    }

    /// Returns the settings that select which super-packets are written to the device.
    pub const fn switches(&self) -> &Switches {
        &self.output.switches
    }

    /// Returns the counters of writing.
    pub const fn counters(&self) -> &WriterCounters {
        &self.output.counters
    }

    /// Returns the aggregation counters: the numbers of packets received and merged, and the
    /// reasons for which packets left the aggregator.
    pub const fn aggregation(&self) -> &AggregateCounters {
        self.aggregator.counters()
    }

    /// Returns the device.
    pub const fn device(&self) -> &D {
        &self.output.device
    }

    pub(crate) const fn framing(&self) -> Option<Framing> {
        self.output.framing
    }
}

impl<D: fmt::Debug, B> fmt::Debug for Writer<D, B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Writer")
            .field("device", &self.output.device)
            .field("switches", &self.output.switches)
            .field("length", &(self.batch.len() + self.queue.len()))
            .field("counters", &self.output.counters)
            .finish_non_exhaustive()
    }
}

/// Returns the policy by which packets merge under these settings. TCP packets of both IP versions
/// merge even if super-packets of only one version are switched on. Those of the other version are
/// separated again before they are written, which costs a few percent of the time of their writes.
const fn policy(settings: &Settings) -> Policy {
    let policy = if settings.on.udp { Policy::gro_with_udp() } else { Policy::gro() };
    let policy = policy.with_max_fragments(MAX_PIECES);
    if settings.trusted_input { policy.with_trusted_input() } else { policy }
}

/// Writes packets from the aggregator to the device.
struct DeviceWriter<D> {
    device: D,
    framing: Option<Framing>,
    switches: Switches,
    /// Version of the [`Switches`] from which `settings` was copied.
    version: u64,
    settings: Settings,
    progress: WriteProgress,
    /// The first error in the flush in progress that concerns a single packet.
    error: Option<io::Error>,
    /// Memory for the slices of the packet that is written; empty between writes.
    slices: Vec<IoSlice<'static>>,
    counters: WriterCounters,
    notice: Option<RefusalCallback>,
}

/// A function of the caller that is called for each refused super-packet.
type RefusalCallback = Box<dyn FnMut(&Refusal) + Send>;

/// The progress of a packet that could not be written, or of a batch that is not merged.
#[derive(Debug, Default)]
struct WriteProgress {
    /// Whether the packets of the batch pass through the aggregator, which merges them.
    merges: bool,
    /// Whether a super-packet is written as the packets that were merged into it.
    separated: bool,
    /// Number of packets of a separated super-packet, or of a batch that is not merged, that are
    /// written or rejected.
    done: usize,
    /// The refusal of a super-packet, until it is known whether the device accepts the packets that
    /// were merged into it.
    refusal: Option<Refusal>,
}

impl<D: Device> DeviceWriter<D> {
    /// Reads the [switches](Switches). Returns whether they have changed.
    #[inline]
    fn update_settings(&mut self) -> bool {
        match self.switches.newer_than(self.version) {
            Some((version, settings)) => {
                (self.version, self.settings) = (version, settings);
                true
            }
            None => false,
        }
    }

    /// Writes a packet from the aggregator, or resumes one that an earlier call could not write.
    #[inline]
    fn take<B: AsRef<[u8]>>(
        &mut self,
        packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, B>>,
        batch: &[B],
    ) -> io::Result<()> {
        if let Some(kind) = packet.metadata.gso.map(|gso| gso.kind)
            && packet.is_merged()
            && !self.progress.separated
        {
            if self.write_whole(kind, packet)? {
                return Ok(());
            }
            self.progress.separated = true;
            self.counters.separated += 1;
        }
        self.write_each(packet_indices(packet.pieces()), batch)?;
        (self.progress.separated, self.progress.done, self.progress.refusal) = (false, 0, None);
        Ok(())
    }

    /// Writes a super-packet. Returns `false` if its kind or destination is switched off, or the
    /// device refuses it.
    fn write_whole<B: AsRef<[u8]>>(
        &mut self,
        kind: GsoKind,
        packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, B>>,
    ) -> io::Result<bool> {
        // Packets that merged for a framing have a header.
        let Some(framing) = self.framing else { return Ok(false) };
        let Ok(described) = framing.header(packet) else { return Ok(false) };
        if !self.settings.allows(kind, packet.header(), framing.layer) {
            return Ok(false);
        }
        let mut slices = reuse_slices(mem::take(&mut self.slices));
        slices.push(IoSlice::new(&described));
        slices.extend(packet.slices().map(IoSlice::new));
        let result = self.device.write(&slices);
        self.slices = reuse_slices(slices);
        match result {
            Ok(()) => {
                let header = packet.header().len() as u64;
                let packets = u64::from(packet.metadata.packets);
                self.counters.packets += packets;
                self.counters.bytes += packet.length() as u64 + (packets - 1) * header;
                self.counters.writes += 1;
                self.counters.super_packets += 1;
                Ok(true)
            }
            Err(error) if concerns_packet(&error) => {
                self.counters.refused += 1;
                self.progress.refusal =
                    Some(Refusal::new(kind, packet.length(), packet.metadata.packets, &error));
                Ok(false)
            }
            Err(error) => Err(self.count_full(error)),
        }
    }

    /// Writes packets of the batch one by one, starting with the first that is neither written nor
    /// rejected.
    fn write_each<B: AsRef<[u8]>>(
        &mut self,
        packets: impl Iterator<Item = usize>,
        batch: &[B],
    ) -> io::Result<()> {
        let header = [0; superpacket::virtio::Format::LONGEST];
        let header = header.get(..self.framing.map_or(0, Framing::header_length)).unwrap_or(&[]);
        for packet in packets.skip(self.progress.done) {
            let bytes = batch.get(packet).map_or(&[][..], AsRef::as_ref);
            let slices = [IoSlice::new(header), IoSlice::new(bytes)];
            // Without a header only one slice is passed.
            match self.device.write(slices.get(usize::from(header.is_empty())..).unwrap_or(&slices))
            {
                Ok(()) => {
                    self.progress.done += 1;
                    self.counters.packets += 1;
                    self.counters.bytes += bytes.len() as u64;
                    self.counters.writes += 1;
                    if let Some(refusal) = self.progress.refusal.take() {
                        self.switch_off(&refusal);
                    }
                }
                Err(error) if concerns_packet(&error) => {
                    self.progress.done += 1;
                    self.counters.rejected += 1;
                    self.error.get_or_insert(error);
                }
                Err(error) => return Err(self.count_full(error)),
            }
        }
        Ok(())
    }

    /// Switches off a kind of super-packets that the device refused although it accepts single
    /// packets.
    #[cold]
    fn switch_off(&mut self, refusal: &Refusal) {
        let is_news = self.switches.refuse(refusal);
        self.settings.on = self.settings.on.with(refusal.kind, false);
        if let (true, Some(notice)) = (is_news, &mut self.notice) {
            notice(refusal);
        }
    }

    #[cold]
    fn count_full(&mut self, error: io::Error) -> io::Error {
        self.counters.full += u64::from(error.kind() == io::ErrorKind::WouldBlock);
        error
    }
}

/// Returns the indices of the batch's packets in a super-packet, in order.
fn packet_indices(pieces: &[Piece<BufferIndex>]) -> impl Iterator<Item = usize> + '_ {
    let mut last = None;
    pieces
        .iter()
        .filter_map(Piece::buffer)
        .map(|buffer| buffer.packet())
        .filter(move |&packet| last.replace(packet) != Some(packet))
}

/// Returns whether the error concerns one packet and not the device.
fn concerns_packet(error: &io::Error) -> bool {
    /// `EMSGSIZE`, which has no [`io::ErrorKind`].
    const MESSAGE_TOO_LONG: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 90 } else { 40 };
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(MESSAGE_TOO_LONG)
}

/// Returns the vector emptied, for slices of another lifetime. Its memory is reused.
fn reuse_slices<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
