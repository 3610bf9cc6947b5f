//! A lossy link in user space: it drops, duplicates, delays, reorders and corrupts frames, and tags
//! them for a VLAN. It works on every kernel, and its decisions repeat for the same seed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use superpacket::virtio::Header as VnetHeader;

use crate::error::LabError;
use crate::host::Host;
use crate::link::Link;
use crate::pattern::Pattern;
use crate::raw::{CapturedFrame, RawOptions, RawSocket};

/// Impairments of a wire, in both directions. The default has none.
///
/// To a wire, a super-packet is one frame: switch TSO off at the hosts to lose single segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WireSettings {
    /// Share of frames that are lost, 0 to 1.
    pub loss: f64,
    /// Share of frames that are sent twice, 0 to 1.
    pub duplicate: f64,
    /// Share of frames, 0 to 1, that are held until three others have passed or 2 ms are over.
    pub reorder: f64,
    /// Share of frames above 200 bytes, 0 to 1, in whose last byte a bit is flipped. If a device
    /// has yet to fill in the checksum, that checksum will cover the wrong byte, and the receiver
    /// cannot detect the error; a faulty bridge causes the same.
    pub corrupt: f64,
    /// Delay of each frame.
    pub delay: Duration,
    /// VLAN ID of a tag that is added to frames from left to right, and removed from right to left.
    /// Frames from the right without the tag are dropped. This lets hosts without VLAN devices use
    /// a VLAN.
    pub vlan: Option<u16>,
    /// Seed of the random decisions.
    pub seed: u64,
}

/// Counters of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames lost by `loss`.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held so that others overtook them.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames dropped because they lacked the expected VLAN tag, or because the next interface
    /// refused them.
    pub refused: u64,
}

/// State shared with the threads of a wire: its counters, and the request to stop.
#[derive(Default)]
struct WireState {
    stop: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    refused: AtomicU64,
}

/// A link between two interfaces, served by two threads until it is dropped.
pub struct Wire {
    shared: Arc<WireState>,
    threads: Vec<JoinHandle<Result<(), LabError>>>,
}

impl Wire {
    /// Joins two interfaces, of the same host or of different hosts. They should have no addresses.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a share outside 0 to 1; [`LabError::System`] if an interface
    /// cannot be opened.
    pub fn join(left: &Link, right: &Link, settings: WireSettings) -> Result<Self, LabError> {
        for (name, share) in [
            ("loss", settings.loss),
            ("duplicate", settings.duplicate),
            ("reorder", settings.reorder),
            ("corrupt", settings.corrupt),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(LabError::Invalid {
                    what: format!("{name} = {share}"),
                    reason: "expected a share of the frames, 0 to 1".into(),
                });
            }
        }
        let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
        let sockets =
            [Arc::new(RawSocket::open(left, options)?), Arc::new(RawSocket::open(right, options)?)];
        let mut wire = Self { shared: Arc::default(), threads: Vec::new() };
        for (from, to, host, tag) in [
            (0, 1, left.host(), TagChange::push(settings.vlan)),
            (1, 0, right.host(), TagChange::pop(settings.vlan)),
        ] {
            let direction = WireDirection {
                from: Arc::clone(&sockets[from]),
                to: Arc::clone(&sockets[to]),
                settings,
                tag,
                decisions: RandomDecisions {
                    pattern: Pattern::new(settings.seed).stream(from as u64),
                    count: 0,
                },
                shared: Arc::clone(&wire.shared),
                delayed: VecDeque::new(),
                held: VecDeque::new(),
            };
            wire.threads.push(host.spawn(move || direction.serve())?);
        }
        Ok(wire)
    }

    /// Joins interface `left_name` of host `left` and `right_name` of `right` by a wire. The wire
    /// runs on a separate host between two veth pairs.
    ///
    /// # Errors
    ///
    /// Those of [`Wire::join`], and the kernel's refusal of a veth pair.
    pub fn between(
        left: &Host,
        left_name: &str,
        right: &Host,
        right_name: &str,
        settings: WireSettings,
    ) -> Result<(Self, Link, Link), LabError> {
        let host = Host::new("wire")?;
        for name in ["all", "default"] {
            // Prevents the wire's host from sending frames. Fails harmlessly without IPv6.
            let _ = host.set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
        let (left, left_end) = Link::veth(left, left_name, &host, "left")?;
        let (right, right_end) = Link::veth(right, right_name, &host, "right")?;
        Ok((Self::join(&left_end, &right_end, settings)?, left, right))
    }

    /// Returns the counters of both directions together.
    #[must_use]
    pub fn counters(&self) -> WireCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        WireCounters {
            received: value(&shared.received),
            sent: value(&shared.sent),
            lost: value(&shared.lost),
            duplicated: value(&shared.duplicated),
            reordered: value(&shared.reordered),
            corrupted: value(&shared.corrupted),
            refused: value(&shared.refused),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread ends early if its interface was removed, which its owner did on purpose.
            let _ = thread.join();
        }
    }
}

/// The change of a frame's VLAN tag in one direction.
#[derive(Clone, Copy)]
enum TagChange {
    Keep,
    Push(u16),
    Pop(u16),
}

impl TagChange {
    fn push(vlan: Option<u16>) -> Self {
        vlan.map_or(Self::Keep, Self::Push)
    }

    fn pop(vlan: Option<u16>) -> Self {
        vlan.map_or(Self::Keep, Self::Pop)
    }

    /// Returns the frame to send; `None` if it lacks the expected tag.
    fn apply(self, frame: CapturedFrame) -> Option<(VnetHeader, Vec<u8>)> {
        let header = frame.vnet.unwrap_or_default();
        match self {
            Self::Pop(vlan) => {
                let found = frame.vlan.is_some_and(|tag| tag.control & 0xfff == vlan);
                found.then_some((header, frame.bytes))
            }
            Self::Keep => {
                let added = if frame.vlan.is_some() { 4 } else { 0 };
                Some((shift(header, added), frame.with_tag()))
            }
            Self::Push(vlan) => {
                let outer = [0x8100_u16.to_be_bytes(), vlan.to_be_bytes()].concat();
                let added = if frame.vlan.is_some() { 8 } else { 4 };
                let mut bytes = frame.with_tag();
                bytes.splice(12..12, outer);
                Some((shift(header, added), bytes))
            }
        }
    }
}

/// Adjusts the offsets in a virtio header after `added` bytes were inserted before the headers to
/// which they point.
fn shift(mut header: VnetHeader, added: u16) -> VnetHeader {
    if header.flags & 1 != 0 {
        header.csum_start += added;
    }
    if header.hdr_len != 0 {
        header.hdr_len += added;
    }
    header
}

/// Random decisions that repeat for the same seed.
struct RandomDecisions {
    pattern: Pattern,
    count: u64,
}

impl RandomDecisions {
    fn decide(&mut self, share: f64) -> bool {
        let mut bytes = [0; 8];
        self.pattern.fill(self.count * 8, &mut bytes);
        self.count += 1;
        // The upper 53 bits, as a number in [0, 2^53).
        ((u64::from_le_bytes(bytes) >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

type WireFrame = (VnetHeader, Vec<u8>);

/// One direction of a wire, with the frames that are delayed or held in it.
struct WireDirection {
    from: Arc<RawSocket>,
    to: Arc<RawSocket>,
    settings: WireSettings,
    tag: TagChange,
    decisions: RandomDecisions,
    shared: Arc<WireState>,
    /// Delayed frames, with their due times.
    delayed: VecDeque<(Instant, WireFrame)>,
    /// Reordered frames: latest send time, number of other frames that must pass first, frame.
    held: VecDeque<(Instant, u32, WireFrame)>,
}

impl WireDirection {
    fn serve(mut self) -> Result<(), LabError> {
        let mut buffer = vec![0; 1 << 20];
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut idle = true;
            // Bounded, so that due frames are sent even under load.
            for _ in 0..64 {
                let Some(frame) = self.receive(&mut buffer)? else { break };
                idle = false;
                self.accept(frame);
            }
            let next = self.release();
            if idle {
                self.from.wait(next.min(Duration::from_millis(20)))?;
            }
        }
        Ok(())
    }

    /// Receives the next frame. An interface that is down yields none, and may come up again.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<CapturedFrame>, LabError> {
        match self.from.receive(buffer) {
            Err(LabError::System { source, .. })
                if source.raw_os_error() == Some(libc::ENETDOWN) =>
            {
                Ok(None)
            }
            other => other,
        }
    }

    fn accept(&mut self, frame: CapturedFrame) {
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        count(&self.shared.received);
        // Draws all four numbers for each frame, so that settings do not influence each other.
        let settings = self.settings;
        let shares = [settings.loss, settings.duplicate, settings.reorder, settings.corrupt];
        let [lost, duplicated, reordered, corrupt] =
            shares.map(|share| self.decisions.decide(share));
        if lost {
            count(&self.shared.lost);
            return;
        }
        let Some(mut frame) = self.tag.apply(frame) else {
            count(&self.shared.refused);
            return;
        };
        if let (true, Some(last)) = (corrupt && frame.1.len() > 200, frame.1.last_mut()) {
            count(&self.shared.corrupted);
            *last ^= 1;
        }
        if duplicated {
            count(&self.shared.duplicated);
            self.send_or_delay(now, frame.clone());
        }
        if reordered {
            count(&self.shared.reordered);
            self.held.push_back((now + Duration::from_millis(2), 3, frame));
        } else {
            self.send_or_delay(now, frame);
            for (_, others, _) in &mut self.held {
                *others = others.saturating_sub(1);
            }
            while self.held.front().is_some_and(|(_, others, _)| *others == 0) {
                if let Some((_, _, frame)) = self.held.pop_front() {
                    self.send_or_delay(now, frame);
                }
            }
        }
    }

    /// Sends a frame now, or queues it until its delay is over.
    fn send_or_delay(&mut self, now: Instant, frame: WireFrame) {
        if self.settings.delay.is_zero() {
            self.send(&frame);
        } else {
            self.delayed.push_back((now + self.settings.delay, frame));
        }
    }

    /// Sends all due frames, and returns the time until the next one is due.
    fn release(&mut self) -> Duration {
        let now = Instant::now();
        while self.held.front().is_some_and(|(latest, ..)| *latest <= now) {
            if let Some((_, _, frame)) = self.held.pop_front() {
                self.send_or_delay(now, frame);
            }
        }
        while self.delayed.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, frame)) = self.delayed.pop_front() {
                self.send(&frame);
            }
        }
        let held = self.held.front().map(|(latest, ..)| *latest);
        let next = held.into_iter().chain(self.delayed.front().map(|(due, _)| *due)).min();
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }

    fn send(&self, frame: &WireFrame) {
        // A refusal (interface down, frame too long) is a loss, as on a real wire; it is counted.
        let sent = self.to.send_with_headers(&[(frame.0, &frame.1)]).is_ok();
        let counter = if sent { &self.shared.sent } else { &self.shared.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
