//! A wire in user space that can be as bad as a test needs: it loses, repeats, delays and swaps
//! frames, and tags them for a VLAN, on every kernel, and the same way for the same seed.

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

/// What a wire does to frames, in both directions. The default does nothing.
///
/// A super-packet is one frame to it: switch TSO off at the hosts where segments are to be lost one
/// by one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WireSettings {
    /// Part of the frames that are lost, 0 to 1.
    pub loss: f64,
    /// Part of the frames that are sent twice, 0 to 1.
    pub duplicate: f64,
    /// Part of the frames that are held back until three others have passed, or 2 ms, 0 to 1.
    pub reorder: f64,
    /// Part of the frames in whose last byte a bit is flipped, 0 to 1, of those longer than 200
    /// bytes. Where the checksum is still to be filled in by a device, it will fit the wrong byte,
    /// which a receiver cannot know: this is what a faulty bridge does.
    pub corrupt: f64,
    /// How long each frame is held.
    pub delay: Duration,
    /// Tags frames from left to right with this VLAN ID, and takes that tag from frames from right
    /// to left; what comes from there without it is lost. So hosts without VLAN devices talk on a
    /// VLAN.
    pub vlan: Option<u16>,
    /// Begins the sequence of random decisions.
    pub seed: u64,
}

/// What a wire did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames lost on purpose.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back so that others overtook them.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Frames lost because they had another tag than the wire's, or the next interface refused
    /// them.
    pub refused: u64,
}

/// Counters that both threads add to.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    refused: AtomicU64,
}

/// A wire between two interfaces, served by two threads until it is dropped.
pub struct Wire {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), LabError>>>,
}

impl Wire {
    /// Joins two interfaces, of the same host or of different ones. They should carry no address of
    /// their own.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a part that is not 0 to 1; [`LabError::System`] where an interface
    /// cannot be opened.
    pub fn join(left: &Link, right: &Link, settings: WireSettings) -> Result<Self, LabError> {
        for (name, part) in [
            ("loss", settings.loss),
            ("duplicate", settings.duplicate),
            ("reorder", settings.reorder),
            ("corrupt", settings.corrupt),
        ] {
            if !(0.0..=1.0).contains(&part) {
                return Err(LabError::Invalid {
                    what: format!("{name} = {part}"),
                    reason: "expected a part of the frames, 0 to 1".into(),
                });
            }
        }
        let options = RawOptions { vnet_headers: true, ..RawOptions::default() };
        let sockets =
            [Arc::new(RawSocket::open(left, options)?), Arc::new(RawSocket::open(right, options)?)];
        let mut wire = Self { shared: Arc::default(), threads: Vec::new() };
        for (from, to, host, tag) in [
            (0, 1, left.host(), Tag::push(settings.vlan)),
            (1, 0, right.host(), Tag::pop(settings.vlan)),
        ] {
            let direction = WireDirection {
                from: Arc::clone(&sockets[from]),
                to: Arc::clone(&sockets[to]),
                settings,
                tag,
                dice: Dice { pattern: Pattern::new(settings.seed).stream(from as u64), drawn: 0 },
                shared: Arc::clone(&wire.shared),
                waiting: VecDeque::new(),
                held: VecDeque::new(),
            };
            wire.threads.push(host.spawn(move || direction.serve())?);
        }
        Ok(wire)
    }

    /// Joins two hosts by such a wire, which takes a host of its own between two veth pairs:
    /// interface `left_name` in `left`, and `right_name` in `right`.
    ///
    /// # Errors
    ///
    /// As [`Wire::join`], and the kernel's refusal of a veth pair.
    pub fn between(
        left: &Host,
        left_name: &str,
        right: &Host,
        right_name: &str,
        settings: WireSettings,
    ) -> Result<(Self, Link, Link), LabError> {
        let host = Host::new("wire")?;
        for name in ["all", "default"] {
            // The wire says nothing of its own. Without IPv6 there is nothing to switch off.
            let _ = host.set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
        }
        let (left, left_end) = Link::veth(left, left_name, &host, "left")?;
        let (right, right_end) = Link::veth(right, right_name, &host, "right")?;
        Ok((Self::join(&left_end, &right_end, settings)?, left, right))
    }

    /// What it did until now, in both directions together.
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
            // An interface that went away ends its thread early; whoever took it away knows.
            let _ = thread.join();
        }
    }
}

/// What happens to the VLAN tag in one direction.
#[derive(Clone, Copy)]
enum Tag {
    Keep,
    Push(u16),
    Pop(u16),
}

impl Tag {
    fn push(vlan: Option<u16>) -> Self {
        vlan.map_or(Self::Keep, Self::Push)
    }

    fn pop(vlan: Option<u16>) -> Self {
        vlan.map_or(Self::Keep, Self::Pop)
    }

    /// The frame as it goes out; `None` where it has not the tag that it should have.
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

/// Moves what a header says of places by the bytes put in before them.
fn shift(mut header: VnetHeader, added: u16) -> VnetHeader {
    if header.flags & 1 != 0 {
        header.csum_start += added;
    }
    if header.hdr_len != 0 {
        header.hdr_len += added;
    }
    header
}

/// Random decisions that are the same for the same seed.
struct Dice {
    pattern: Pattern,
    drawn: u64,
}

impl Dice {
    fn says(&mut self, part: f64) -> bool {
        let mut bytes = [0; 8];
        self.pattern.fill(self.drawn * 8, &mut bytes);
        self.drawn += 1;
        // The upper 53 bits make a number in [0, 1).
        ((u64::from_le_bytes(bytes) >> 11) as f64) < part * (1_u64 << 53) as f64
    }
}

type Frame = (VnetHeader, Vec<u8>);

/// One direction.
struct WireDirection {
    from: Arc<RawSocket>,
    to: Arc<RawSocket>,
    settings: WireSettings,
    tag: Tag,
    dice: Dice,
    shared: Arc<Shared>,
    /// Frames and when they are due.
    waiting: VecDeque<(Instant, Frame)>,
    /// Frames held back, until when at the latest, and how many others must pass before.
    held: VecDeque<(Instant, u32, Frame)>,
}

impl WireDirection {
    fn serve(mut self) -> Result<(), LabError> {
        let mut buffer = vec![0; 1 << 20];
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut idle = true;
            // A bound, so that frames due are sent also under load.
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

    /// The next frame. An interface that is down gives none, and may come up again.
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
        // All dice are cast for each frame, so that one setting does not change what another does.
        let settings = self.settings;
        let parts = [settings.loss, settings.duplicate, settings.reorder, settings.corrupt];
        let [lost, twice, late, corrupt] = parts.map(|part| self.dice.says(part));
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
        if twice {
            count(&self.shared.duplicated);
            self.pass(now, frame.clone());
        }
        if late {
            count(&self.shared.reordered);
            self.held.push_back((now + Duration::from_millis(2), 3, frame));
        } else {
            self.pass(now, frame);
            for (_, others, _) in &mut self.held {
                *others = others.saturating_sub(1);
            }
            while self.held.front().is_some_and(|(_, others, _)| *others == 0) {
                if let Some((_, _, frame)) = self.held.pop_front() {
                    self.pass(now, frame);
                }
            }
        }
    }

    /// Sends a frame now, or when its delay is over.
    fn pass(&mut self, now: Instant, frame: Frame) {
        if self.settings.delay.is_zero() {
            self.send(&frame);
        } else {
            self.waiting.push_back((now + self.settings.delay, frame));
        }
    }

    /// Sends what is due, and says how long the next frame has to wait.
    fn release(&mut self) -> Duration {
        let now = Instant::now();
        while self.held.front().is_some_and(|(latest, ..)| *latest <= now) {
            if let Some((_, _, frame)) = self.held.pop_front() {
                self.pass(now, frame);
            }
        }
        while self.waiting.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, frame)) = self.waiting.pop_front() {
                self.send(&frame);
            }
        }
        let held = self.held.front().map(|(latest, ..)| *latest);
        let next = held.into_iter().chain(self.waiting.front().map(|(due, _)| *due)).min();
        next.map_or(Duration::MAX, |next| next.saturating_duration_since(now))
    }

    fn send(&self, frame: &Frame) {
        // A refusal (interface down, frame too long) is a loss, as on a real wire; it is counted.
        let sent = self.to.send_with_headers(&[(frame.0, &frame.1)]).is_ok();
        let counter = if sent { &self.shared.sent } else { &self.shared.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
