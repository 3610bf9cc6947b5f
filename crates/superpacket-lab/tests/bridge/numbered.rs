//! Frames with a number in their source address, which distinguishes them from each other and from
//! frames that hosts send by themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use superpacket_lab::{CapturedFrame, LabError, RawSocket};

/// Frames whose source addresses begin with 02 and these bytes.
pub struct Numbered(pub [u8; 3]);

impl Numbered {
    /// Returns the source address of the frames with this number.
    pub fn source(&self, number: u16) -> [u8; 6] {
        let ([a, b, c], [high, low]) = (self.0, number.to_be_bytes());
        [2, a, b, c, high, low]
    }

    /// Returns the number of a frame; `None` if it has none.
    pub fn of(&self, frame: &CapturedFrame) -> Option<u16> {
        let &[high, low] = frame.bytes.get(6..12)?.strip_prefix(&self.source(0)[..4])? else {
            return None;
        };
        Some(u16::from_be_bytes([high, low]))
    }

    /// Captures up to this many frames with a wanted number, within this time.
    pub fn capture(
        &self,
        receiver: &RawSocket,
        time: Duration,
        count: usize,
        wanted: impl Fn(u16) -> bool,
    ) -> Result<BTreeMap<u16, Vec<CapturedFrame>>, LabError> {
        let deadline = Instant::now() + time;
        let (mut captured, mut missing) = (BTreeMap::<_, Vec<_>>::new(), count);
        while missing > 0 && Instant::now() < deadline {
            let capture =
                receiver.capture(deadline.saturating_duration_since(Instant::now()), missing)?;
            assert_eq!(capture.dropped, 0, "the receiver captures all");
            for frame in capture.frames {
                if let Some(number) = self.of(&frame).filter(|&number| wanted(number)) {
                    captured.entry(number).or_default().push(frame);
                    missing = missing.saturating_sub(1);
                }
            }
        }
        Ok(captured)
    }
}
