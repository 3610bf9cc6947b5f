//! The memory into which a card receives, and the allocation of this memory to frames.

use std::ops::Range;

use superpacket::packet::MAX_BUFFERS;
use superpacket_port::{Buffer, BufferPool, Region};

use super::settings::NicSettings;
use crate::fit::{MAX_TAGS, TAG};

/// Maximum size of a card's buffers in bytes: 4 GiB.
const MAX_MEMORY: u64 = 4 << 30;

/// Size in bytes of the slots into which a page is divided. Slots are lent separately.
const PART: usize = 2048;

/// Size of a header buffer in bytes; the largest value of the `copy` setting.
const HEADER: usize = 256;

/// Length of an untagged Ethernet header in bytes.
const ETHERNET: usize = 14;

/// Consecutive slots of one page, and the range of their bytes that holds a part of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotRun {
    /// Index of the run's first slot.
    first: usize,
    /// Number of slots in the run.
    slots: usize,
    /// Range of bytes in use, relative to the start of the first slot.
    range: Range<usize>,
}

/// The receive pages of a card, used in turn, and its header buffers.
///
/// A frame goes into the rest of the open page if it fits there. Otherwise it starts a new page,
/// and takes as many pages as it needs. A page is reused when all buffers in it have been returned.
#[derive(Debug)]
pub(super) struct Pages {
    region: Region,
    /// Number of slots per page.
    per_page: usize,
    pages: usize,
    /// Index of the page that is being filled with frames at present.
    page: usize,
    /// Index of the first unused slot of the page that is being filled.
    next: usize,
    headroom: usize,
    copy: usize,
    headers: Option<BufferPool>,
    /// The slots that [`Pages::find`] found for the current frame.
    runs: Vec<SlotRun>,
    /// The slot of the current frame's header buffer, and the number of bytes that belong into it.
    header: Option<(usize, usize)>,
    /// Number of pages that the card has begun to fill since it was opened.
    pub(super) begun: u64,
}

impl Pages {
    /// Allocates memory for frames of at most `longest` bytes from the IP header on; `None` if that
    /// is more than [`MAX_MEMORY`], or more than is available.
    pub(super) fn new(settings: &NicSettings, longest: usize) -> Option<Self> {
        let frame = settings.headroom + longest + ETHERNET + MAX_TAGS * TAG;
        // Enough for full rings, the same number of frames held by the user, and one poll.
        let frames = 2 * settings.ring * usize::from(settings.queues) + 512;
        let (slot, per_page, pages) = match settings.page.bytes() {
            Some(page) => {
                // Sized for frames of maximum length, which use at least half of each page.
                let frames_per_page = (page / frame.next_multiple_of(PART)).max(1);
                (PART, page / PART, frames.div_ceil(frames_per_page) * frame.div_ceil(page))
            }
            None => (frame.next_multiple_of(64), 1, frames),
        };
        if pages as u64 * (per_page * slot) as u64 > MAX_MEMORY {
            return None;
        }
        Some(Pages {
            region: Region::try_heap(pages * per_page, slot)?,
            per_page,
            pages,
            page: pages - 1,
            next: per_page,
            headroom: settings.headroom,
            copy: settings.copy,
            headers: if settings.copy == 0 {
                None
            } else {
                Some(BufferPool::try_new(frames, HEADER)?)
            },
            runs: Vec::with_capacity(MAX_BUFFERS),
            header: None,
            begun: 0,
        })
    }

    /// Restarts the search for free pages at the first page, if that is free, so that pages that
    /// are still in the CPU cache are reused.
    pub(super) fn rewind(&mut self) {
        if self.region.is_free(0, self.per_page) {
            (self.page, self.next) = (self.pages - 1, self.per_page);
        }
    }

    /// Returns whether more than half of the page memory is lent.
    pub(super) fn is_crowded(&self) -> bool {
        self.region.lent() * 2 > self.region.slots()
    }

    /// Finds free memory for a frame of `length` bytes. Returns the number of buffers; `None` if
    /// there is no room, or the frame would take more than [`MAX_BUFFERS`].
    pub(super) fn find(&mut self, length: usize) -> Option<usize> {
        self.runs.clear();
        self.header = None;
        let mut rest = length;
        if let Some(headers) = &mut self.headers {
            let copied = rest.min(self.copy);
            self.header = Some((headers.free()?, copied));
            rest -= copied;
        }
        let slot = self.region.slot_size();
        let (mut page, mut next) = (self.page, self.next);
        let mut from = self.headroom;
        let mut pages_left = self.pages;
        let mut begun = 0;
        while rest != 0 {
            let slots = (from + rest).div_ceil(slot);
            if next + slots > self.per_page {
                // The rest does not fit into this page: take the next free one.
                loop {
                    pages_left = pages_left.checked_sub(1)?;
                    page = if page + 1 == self.pages { 0 } else { page + 1 };
                    if self.region.is_free(page * self.per_page, self.per_page) {
                        break;
                    }
                }
                next = 0;
                begun += 1;
            }
            let slots = slots.min(self.per_page);
            let end = (from + rest).min(slots * slot);
            self.runs.push(SlotRun { first: page * self.per_page + next, slots, range: from..end });
            next += slots;
            rest -= end - from;
            from = 0;
        }
        let buffers = self.runs.len() + usize::from(self.header.is_some());
        if buffers > MAX_BUFFERS {
            return None;
        }
        (self.page, self.next) = (page, next);
        self.begun += begun;
        Some(buffers)
    }

    /// Calls `write` with each piece of the memory that [`find`](Self::find) found last, in the
    /// order of the frame's bytes.
    pub(super) fn fill(&mut self, mut write: impl FnMut(&mut [u8])) {
        if let (Some((slot, length)), Some(headers)) = (self.header, &mut self.headers)
            && let Some(bytes) = headers.slot_mut(slot).and_then(|bytes| bytes.get_mut(..length))
        {
            write(bytes);
        }
        for run in &self.runs {
            if let Some(bytes) = self
                .region
                .run_mut(run.first, run.slots)
                .and_then(|bytes| bytes.get_mut(run.range.clone()))
            {
                write(bytes);
            }
        }
    }

    /// Overwrites two bytes at `offset` of the frame that was written to the memory that
    /// [`find`](Self::find) found last.
    pub(super) fn overwrite(&mut self, offset: usize, bytes: [u8; 2]) {
        let mut start = 0;
        self.fill(|target| {
            for (index, byte) in bytes.into_iter().enumerate() {
                if let Some(place) =
                    (offset + index).checked_sub(start).and_then(|place| target.get_mut(place))
                {
                    *place = byte;
                }
            }
            start += target.len();
        });
    }

    /// Lends the memory that [`find`](Self::find) found last, in the order of the frame's bytes.
    pub(super) fn lend(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        let header = match (self.header.take(), &mut self.headers) {
            (Some((slot, length)), Some(headers)) => headers.lend(slot, 0..length),
            _ => None,
        };
        let region = &mut self.region;
        header.into_iter().chain(
            self.runs.drain(..).filter_map(|run| region.lend_run(run.first, run.slots, run.range)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::PageSize;

    fn place(pages: &mut Pages, length: usize) -> Vec<Buffer> {
        let buffers = pages.find(length).expect("room");
        pages.fill(|bytes| bytes.fill(length as u8));
        let lent: Vec<_> = pages.lend().collect();
        assert_eq!(lent.len(), buffers);
        assert_eq!(lent.iter().map(|buffer| buffer.bytes().len()).sum::<usize>(), length);
        lent
    }

    /// Returns the offset of a buffer from the start of the pages, in bytes.
    fn offset(pages: &Pages, buffer: &Buffer) -> usize {
        buffer.bytes().as_ptr() as usize - pages.region.start().as_ptr() as usize
    }

    #[test]
    fn frames_share_pages_and_span_them() {
        let settings = NicSettings { ring: 8, ..NicSettings::default() };
        for (page, shared) in [
            (PageSize::Page4K, 2),
            (PageSize::Page8K, 4),
            (PageSize::Page16K, 8),
            (PageSize::Page32K, 16),
        ] {
            let bytes = page.bytes().expect("a page");
            let mut pages = Pages::new(&NicSettings { page, ..settings }, 9000).expect("memory");
            let small: Vec<_> = (0..shared + 1).flat_map(|_| place(&mut pages, 1514)).collect();
            assert_eq!(small.len(), shared + 1, "one buffer each");
            let numbers: Vec<_> =
                small.iter().map(|buffer| offset(&pages, buffer) / bytes).collect();
            assert_eq!(numbers, [vec![0; shared], vec![1]].concat(), "they share a page");
            let large = place(&mut pages, 9014);
            let expected: &[usize] = match page {
                PageSize::Page4K => &[4096, 4096, 822],
                PageSize::Page8K => &[8192, 822],
                _ => &[9014],
            };
            assert_eq!(
                large.iter().map(|buffer| buffer.bytes().len()).collect::<Vec<_>>(),
                expected
            );
        }
        let mut pages =
            Pages::new(&NicSettings { page: PageSize::Linear, ..settings }, 9000).expect("memory");
        assert_eq!((place(&mut pages, 60).len(), place(&mut pages, 9022).len()), (1, 1));
    }

    #[test]
    fn a_page_is_reused_when_all_its_buffers_are_returned() {
        let settings = NicSettings { ring: 1, page: PageSize::Page4K, ..NicSettings::default() };
        let mut pages = Pages::new(&settings, 1500).expect("memory");
        let mut held = Vec::new();
        while pages.find(1514).is_some() {
            held.extend(pages.lend());
        }
        assert_eq!(held.len(), pages.pages * 2);
        assert!(pages.is_crowded());
        // Half of each of two pages returns, so neither page is free.
        drop((held.remove(4), held.remove(2)));
        assert_eq!(pages.find(60), None);
        drop(held.remove(2));
        assert_eq!(pages.find(60), Some(1), "the second page is whole");
        let again: Vec<_> = pages.lend().collect();
        assert_eq!(offset(&pages, &again[0]), 4096);
        pages.rewind();
        assert_eq!(pages.page, 1, "the first page is lent");
        held.drain(..2);
        pages.rewind();
        assert_eq!(pages.find(60), Some(1));
        let first: Vec<_> = pages.lend().collect();
        assert_eq!(offset(&pages, &first[0]), 0);
    }

    #[test]
    fn a_frame_that_fits_the_header_buffer_takes_no_page() {
        let settings = NicSettings { copy: 80, headroom: 2, ..NicSettings::default() };
        let mut pages = Pages::new(&settings, 1500).expect("memory");
        let lengths = |buffers: Vec<Buffer>| {
            buffers.iter().map(|buffer| buffer.bytes().len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(place(&mut pages, 60)), [60]);
        assert_eq!(lengths(place(&mut pages, 80)), [80]);
        assert_eq!(pages.begun, 0);
        let long = place(&mut pages, 1514);
        assert_eq!((offset(&pages, &long[1]), pages.begun), (2, 1), "behind the headroom");
        assert_eq!(lengths(long), [80, 1434]);
    }

    #[test]
    fn the_longest_frames_fit_the_buffers_of_a_packet() {
        for page in [PageSize::Page4K, PageSize::Page8K, PageSize::Linear] {
            let longest = NicSettings::MAX_MTU as usize;
            for (headroom, copy) in [(0, 0), (256, 256), (256, 1), (0, 256)] {
                let mut pages = Pages::new(
                    &NicSettings { page, headroom, copy, ring: 1, ..NicSettings::default() },
                    longest,
                )
                .expect("memory");
                assert!(place(&mut pages, longest + 22).len() <= MAX_BUFFERS);
            }
        }
    }
}
