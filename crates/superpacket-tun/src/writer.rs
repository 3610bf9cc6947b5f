//! Packets that a tunnel delivers, merged and written to a device.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem;

use superpacket::aggregate::{Borrowed, BufferIndex};
use superpacket::order::Order;
use superpacket::super_packet::Piece;
use superpacket::{BatchAggregator, Counters, Framing, GsoKind, HashKey, Policy, SuperPacket};

use crate::switch::{Refusal, Settings, Switches};
use crate::{Device, OrderKey};

/// The most slices of one `writev` (`UIO_MAXIOV`), less the device's header and the packet's own.
const MAX_PIECES: u32 = 1024 - 2;

/// Writes packets to one queue of a device. Those of a flow that follow each other are merged, and
/// leave by one gathered write from the buffers in which they were pushed.
///
/// [`push`](Self::push) queues, [`flush`](Self::flush) writes. Packets of a flow leave in the order
/// in which they were pushed. Nothing is held after a flush, and the buffers are dropped: push what
/// one receive call gave, then flush.
///
/// # Packets that overtook each other
///
/// Where a tunnel counts its packets, [`push_in_order`](Self::push_in_order) says the count: a
/// flush first puts what is queued in the order in which it was sent, so that packets merge which
/// were swapped on their way, or by threads that decrypt them. What an earlier flush wrote is gone:
/// nothing waits for a packet that is missing.
///
/// # If the device refuses super-packets
///
/// There are kernels that announce an offload and then refuse its packets with `EINVAL`. The
/// packets of which such a super-packet was merged are then written one by one, in its place. If
/// the device takes them, its kind is switched off for all writers of the device, which
/// [`Switches::refusals`] and a [notice](Self::set_notice) tell once.
///
/// # Errors
///
/// | error | what becomes of the packet | of those behind it |
/// |---|---|---|
/// | [`WouldBlock`](io::ErrorKind::WouldBlock), from [`try_flush`](Self::try_flush) only | stays | stay |
/// | a single packet is no IP packet, or otherwise not what the device takes (`EINVAL`, `EMSGSIZE`) | dropped, counted as [rejected](WriterCounters::rejected) | written; the flush returns the first such error |
/// | all else: the interface is down (`EIO`), gone (`EBADFD`), memory is short (`ENOBUFS`) | stays | stay |
///
/// What stays is written by the next flush, before all that has been pushed since. Who goes on in
/// spite of an error of the third sort calls [`flush_lossy`](Self::flush_lossy), or the queue
/// grows; with a queued writer [`run_lossy`](crate::QueuedWriter::run_lossy).
pub struct Writer<D, B> {
    aggregator: BatchAggregator,
    /// The packets of a flush that is under way.
    batch: Vec<B>,
    /// Those pushed since.
    queue: Vec<B>,
    /// The keys of those pushed since, up to the last that has one.
    keys: Vec<Option<OrderKey>>,
    order: Order,
    output: Output<D>,
}

/// What a [`Writer`] has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterCounters {
    /// Packets that the device took, by themselves or in a super-packet.
    pub packets: u64,
    /// Bytes of these, as they were pushed.
    pub bytes: u64,
    /// Writes that the device took: super-packets and single packets.
    pub writes: u64,
    /// Of the writes, super-packets.
    pub super_packets: u64,
    /// Of the writes, packets that the senders of a queue wrote by themselves, since they came
    /// alone ([`QueuedWriter::counters`](crate::QueuedWriter::counters)).
    pub direct: u64,
    /// Super-packets whose packets were written one by one, because their kind or destination is
    /// switched off or the device refused them.
    pub separated: u64,
    /// Super-packets that the device refused.
    pub refused: u64,
    /// Single packets that the device refused, and that were dropped.
    pub rejected: u64,
    /// Writes that the device was too full for.
    pub full: u64,
}

impl<D: Device, B: AsRef<[u8]>> Writer<D, B> {
    /// Writes to a device that takes a header of this framing before each packet. Without a framing
    /// nothing is merged.
    pub fn new(device: D, framing: Option<Framing>, switches: Switches) -> Self {
        let (version, settings) = switches.snapshot();
        // Without a framing it is not used.
        let aggregator = BatchAggregator::framed(
            framing.unwrap_or(Framing::TUN),
            policy(&settings),
            HashKey::random(),
        );
        let output = Output {
            device,
            framing,
            switches,
            version,
            settings,
            progress: Progress::default(),
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

    /// Queues a packet. It is written by the next flush, and dropped then.
    #[inline]
    pub fn push(&mut self, packet: B) {
        self.queue.push(packet);
    }

    /// Queues a packet of which it is known when it was sent: by a counter of its tunnel's, of
    /// which a stream is a peer. The next flush puts those of a stream in order; packets that were
    /// pushed without a key stay where they are.
    #[inline]
    pub fn push_in_order(&mut self, packet: B, key: OrderKey) {
        self.keys.resize(self.queue.len(), None);
        self.keys.push(Some(key));
        self.queue.push(packet);
    }

    /// Merges and writes all that is queued. Waits where the device is full.
    ///
    /// # Errors
    /// The device's own; see [above](Self#errors).
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

    /// As [`flush`](Self::flush), and drops what stays after an error, as a full queue would have
    /// it.
    ///
    /// # Errors
    /// The device's own.
    pub fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush();
        self.clear();
        result
    }

    /// As [`flush`](Self::flush), without waiting.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) where the device is full: the next call goes on.
    /// Others are the device's own; see [above](Self#errors).
    pub fn try_flush(&mut self) -> io::Result<()> {
        loop {
            let Self { aggregator, batch, queue, keys, order, output } = self;
            let goes_on = !batch.is_empty();
            if !goes_on {
                if queue.is_empty() {
                    return output.error.take().map_or(Ok(()), Err);
                }
                mem::swap(batch, queue);
                if !keys.is_empty() {
                    order.restore(batch, |index| keys.get(index).copied().flatten());
                    keys.clear();
                }
                output.progress = Progress::default();
                if output.see_switches() {
                    aggregator.set_policy(policy(&output.settings));
                }
                output.progress.merges =
                    output.framing.is_some() && output.settings.on.has_any_kind();
            }
            if !output.progress.merges {
                output.write_each(0..batch.len(), batch)?;
            } else if goes_on {
                aggregator.resume(batch, |packet| output.take(&packet, batch))?;
            } else {
                aggregator.poll(batch, |packet| output.take(&packet, batch))?;
            }
            batch.clear();
        }
    }

    /// How many packets have been pushed and are not written or dropped. Of a super-packet or a
    /// batch that is partly written all count.
    pub fn len(&self) -> usize {
        self.batch.len() + self.queue.len()
    }

    /// Is everything written or dropped that has been pushed?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops what is queued. Returns how many packets that were, as [`len`](Self::len) counts.
    pub fn clear(&mut self) -> usize {
        let count = self.len();
        self.batch.clear();
        self.queue.clear();
        self.keys.clear();
        self.output.error = None;
        count
    }

    /// Calls `notice` when the device has refused a kind of super-packet and it is switched off:
    /// for a line in a log.
    pub fn set_notice(&mut self, notice: impl FnMut(&Refusal) + Send + 'static) {
        self.output.notice = Some(Box::new(notice));
    }

    /// The switches of the device.
    pub const fn switches(&self) -> &Switches {
        &self.output.switches
    }

    /// What has been written so far.
    pub const fn counters(&self) -> &WriterCounters {
        &self.output.counters
    }

    /// What the engine has merged so far, with the reason for which each packet left as it did.
    pub const fn aggregation(&self) -> &Counters {
        self.aggregator.counters()
    }

    /// The device that is written to.
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

/// How packets merge by these settings. TCP merges where one version is on: what is off is taken
/// apart when it leaves, which costs a few percent of its writes.
const fn policy(settings: &Settings) -> Policy {
    let policy = if settings.on.udp { Policy::gro_with_udp() } else { Policy::gro() };
    let policy = policy.with_max_fragments(MAX_PIECES);
    if settings.trusted_input { policy.with_trusted_input() } else { policy }
}

/// What takes packets from the aggregator to the device.
struct Output<D> {
    device: D,
    framing: Option<Framing>,
    switches: Switches,
    /// The settings as they were last seen.
    version: u64,
    settings: Settings,
    progress: Progress,
    /// The first error of this flush that told of one packet.
    error: Option<io::Error>,
    /// Memory for the slices of a packet, empty between writes.
    slices: Vec<IoSlice<'static>>,
    counters: WriterCounters,
    notice: Option<Notice>,
}

/// Who is told of a refusal.
type Notice = Box<dyn FnMut(&Refusal) + Send>;

/// How far a packet has come that could not be written, or a batch that is not merged.
#[derive(Debug, Default)]
struct Progress {
    /// The batch goes through the aggregator.
    merges: bool,
    /// The super-packet is written as the packets that merged in it.
    separated: bool,
    /// How many of these are written or rejected.
    done: usize,
    /// The device has refused the super-packet; that this is not for one of its packets is not
    /// known yet.
    refusal: Option<Refusal>,
}

impl<D: Device> Output<D> {
    /// Takes over what has been switched. Returns whether anything has.
    #[inline]
    fn see_switches(&mut self) -> bool {
        match self.switches.newer_than(self.version) {
            Some((version, settings)) => {
                (self.version, self.settings) = (version, settings);
                true
            }
            None => false,
        }
    }

    /// Writes what leaves the aggregator, or goes on with what it could not write.
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
        self.write_each(packets_of(packet.pieces()), batch)?;
        (self.progress.separated, self.progress.done, self.progress.refusal) = (false, 0, None);
        Ok(())
    }

    /// Writes a super-packet, unless it is switched off or the device refuses it.
    fn write_whole<B: AsRef<[u8]>>(
        &mut self,
        kind: GsoKind,
        packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, B>>,
    ) -> io::Result<bool> {
        // What merged for a framing has a header of its own.
        let Some(framing) = self.framing else { return Ok(false) };
        let Ok(described) = framing.header(packet) else { return Ok(false) };
        if !self.settings.allows(kind, packet.header(), framing.layer) {
            return Ok(false);
        }
        let mut slices = reused(mem::take(&mut self.slices));
        slices.push(IoSlice::new(&described));
        slices.extend(packet.slices().map(IoSlice::new));
        let result = self.device.write(&slices);
        self.slices = reused(slices);
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
            Err(error) if is_of_packet(&error) => {
                self.counters.refused += 1;
                self.progress.refusal =
                    Some(Refusal::new(kind, packet.length(), packet.metadata.packets, &error));
                Ok(false)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Writes packets of the batch one by one, from the first on that is not done.
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
            // Without a header there is one slice.
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
                Err(error) if is_of_packet(&error) => {
                    self.progress.done += 1;
                    self.counters.rejected += 1;
                    self.error.get_or_insert(error);
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Switches off what the device refused while it takes single packets.
    #[cold]
    fn switch_off(&mut self, refusal: &Refusal) {
        let is_news = self.switches.refuse(refusal);
        self.settings.on = self.settings.on.with(refusal.kind, false);
        if let (true, Some(notice)) = (is_news, &mut self.notice) {
            notice(refusal);
        }
    }

    #[cold]
    fn failed(&mut self, error: io::Error) -> io::Error {
        self.counters.full += u64::from(error.kind() == io::ErrorKind::WouldBlock);
        error
    }
}

/// Which packets of the batch a packet consists of, in order.
fn packets_of(pieces: &[Piece<BufferIndex>]) -> impl Iterator<Item = usize> + '_ {
    let mut last = None;
    pieces
        .iter()
        .filter_map(Piece::buffer)
        .map(|buffer| buffer.packet())
        .filter(move |&packet| last.replace(packet) != Some(packet))
}

/// Does the error tell of one packet and not of the device?
fn is_of_packet(error: &io::Error) -> bool {
    /// `EMSGSIZE`, for which there is no kind of error.
    const MESSAGE_TOO_LONG: i32 =
        if cfg!(any(target_os = "linux", target_os = "android")) { 90 } else { 40 };
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(MESSAGE_TOO_LONG)
}

/// The memory of a vector, for slices of other bytes: collected in place, so that nothing is
/// allocated.
fn reused<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
