//! The memory that AF_XDP sockets receive into and send from (UMEM): one for all ports of the
//! process, so that a frame goes out where it came in.
//!
//! The first socket registers the pages with the kernel, which charges their whole length to the
//! user; the others share its registration (`XDP_SHARED_UMEM`), each with a fill and a completion
//! ring of its own. The kernel counts who shares: none depends on the socket that came first. A
//! socket that cannot share registers the same pages once more: one that copies beside one that
//! does not, or any before Linux 5.10. An address means the same chunk to all.
//!
//! A UMEM is divided into parts of equal size, one for each queue of a port. The first half of a
//! part's chunks is received into, the second is where frames are put together that do not lie in
//! chunks. Who owns a chunk:
//!
//! ```text
//! fill ring -> kernel -> RX ring -> lent (a Buffer) -> dropped, and not in flight -> fill ring
//!                                        |
//!                                        +-> TX ring of any port: in flight until its completion
//! ```
//! A closed socket gives its part back, and with it all chunks that its TX ring referred to. Where
//! the kernel may still use them, they are withheld until another socket is bound to the same queue
//! of the same interface: the kernel allows that only when it is done with the one before.

#![expect(unsafe_code, reason = "memory shared with the kernel")]

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Region;

/// The fewest parts of a UMEM: two ports of two queues.
const LEAST_PARTS: usize = 4;

/// The most bytes of a UMEM: all of it is pinned.
const MOST: u64 = 16 << 30;

/// All of the process.
static ALL: Mutex<Vec<Weak<Umem>>> = Mutex::new(Vec::new());

/// Memory in chunks.
pub(super) struct Umem {
    mapping: Arc<Mapping>,
    frame_size: u32,
    /// Chunks of a part.
    frames: u32,
    /// How many descriptors in TX rings refer to each chunk.
    in_flight: Box<[AtomicU32]>,
    /// The parts that no queue has. The one that was given back first is the next to be given out.
    free: Mutex<VecDeque<Part>>,
    /// What closed sockets left that the kernel may still use.
    withheld: Mutex<Vec<Withheld>>,
}

/// A queue of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace {
    /// The network namespace's number (`SO_NETNS_COOKIE`).
    pub(super) namespace: u64,
    /// The interface's number there.
    pub(super) interface: u32,
    /// The queue's number.
    pub(super) queue: u32,
}

/// What a closed socket left that the kernel may still use.
#[derive(Debug)]
struct Withheld {
    /// The queue that the socket was bound to; `None` where the system does not say: then it is
    /// withheld for good.
    place: Option<QueuePlace>,
    part: Part,
    /// Descriptors that are not completed, for each chunk of the UMEM.
    posted: Vec<u16>,
}

impl fmt::Debug for Umem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Umem")
            .field("bytes", &self.mapping.length)
            .field("frame_size", &self.frame_size)
            .finish_non_exhaustive()
    }
}

/// Pages, until nobody refers to them.
#[derive(Debug)]
struct Mapping {
    data: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping only says where the memory lies; who may touch which bytes is up to the
// regions made of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let data = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let mapping =
            Mapping { data: NonNull::new(data.cast()).ok_or(io::ErrorKind::OutOfMemory)?, length };
        // Fewer entries in the TLB, where the system has large pages; and no copy of pinned pages
        // in a child process. Neither is needed.
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork] {
            // SAFETY: the range is the mapping. Large pages do not change what it holds; a child
            // that lacks it never runs this code, since it is another program at once (`exec`) or
            // has a copy of one thread only, in which no Rust code may touch what others own.
            let _ = unsafe { rustix::mm::madvise(mapping.data.as_ptr().cast(), length, advice) };
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`; regions and their buffers keep the mapping
        // alive, so that none is left. The kernel pins pages of its own.
        let _ = unsafe { rustix::mm::munmap(self.data.as_ptr().cast(), self.length) };
    }
}

/// The chunks of a queue.
#[derive(Debug)]
pub(super) struct Part {
    number: u32,
    /// Those that frames are received into.
    pub(super) receive: Region,
    /// Those that frames are put together in.
    pub(super) send: Region,
}

/// The right to a part, which goes back to the UMEM.
#[derive(Debug)]
pub(super) struct Lease {
    umem: Arc<Umem>,
    number: u32,
    part: Option<Part>,
    /// Descriptors for each chunk of the UMEM that the closed socket took and did not complete.
    left: Vec<u16>,
    /// The kernel may still use the part, and the chunks in `left`: the queue that the socket was
    /// bound to, as in [`Withheld::place`].
    in_use: Option<Option<QueuePlace>>,
}

impl Lease {
    /// Takes parts of `frames` chunks of `frame_size` bytes, `count` in the same UMEM: one that
    /// other ports have parts of where there is room in it, or a new one.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`], or what `mmap` refused.
    pub(super) fn take(frame_size: u32, frames: u32, count: usize) -> io::Result<Vec<Lease>> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|umem| umem.strong_count() != 0);
        let fits = |umem: &Arc<Umem>| {
            umem.frame_size == frame_size && umem.frames == frames && umem.free().len() >= count
        };
        let known = all.iter().filter_map(Weak::upgrade).find(fits);
        let umem = match known {
            Some(umem) => umem,
            None => {
                // A second port with as many queues finds room.
                let umem = Arc::new(Umem::new(frame_size, frames, (count * 2).max(LEAST_PARTS))?);
                all.push(Arc::downgrade(&umem));
                umem
            }
        };
        let parts: Vec<Part> = umem.free().drain(..count).collect();
        Ok(parts
            .into_iter()
            .map(|part| Lease {
                umem: Arc::clone(&umem),
                number: part.number,
                part: Some(part),
                left: Vec::new(),
                in_use: None,
            })
            .collect())
    }

    /// Takes the part of `umem` that came back last, or else any of that size.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn again(umem: &Arc<Umem>) -> io::Result<Lease> {
        let part = umem.free().pop_back();
        match part {
            Some(part) => Ok(Lease {
                umem: Arc::clone(umem),
                number: part.number,
                part: Some(part),
                left: Vec::new(),
                in_use: None,
            }),
            None => Lease::take(umem.frame_size, umem.frames, 1)?
                .pop()
                .ok_or_else(|| io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// The UMEM.
    pub(super) const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// The first chunk of the part, counted from the UMEM's start: those that are received into
    /// come first.
    pub(super) fn first(&self) -> u32 {
        self.number * self.umem.frames
    }

    /// The part, once: to be brought back to [`retire`](Self::retire).
    pub(super) fn part(&mut self) -> Option<Part> {
        self.part.take()
    }

    /// Takes the part back, to be free when this is dropped, and `left`: the descriptors for each
    /// chunk that are not completed. The socket must be closed before this is dropped.
    pub(super) fn retire(&mut self, receive: Region, send: Region, left: Vec<u16>) {
        self.part = Some(Part { number: self.number, receive, send });
        self.left = left;
    }

    /// Notes that the kernel may still use what is taken back, after the socket is closed that was
    /// bound to `place`, where that is known.
    pub(super) const fn withhold(&mut self, place: Option<QueuePlace>) {
        self.in_use = Some(place);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (part, posted) = (self.part.take(), std::mem::take(&mut self.left));
        match (part, self.in_use) {
            (Some(part), Some(place)) => {
                self.umem.withheld().push(Withheld { place, part, posted })
            }
            (Some(part), None) => self.umem.free_part(part, &posted),
            (None, _) => {}
        }
    }
}

/// Frees what was withheld because of sockets that were bound to this queue: another has just been
/// bound there.
pub(super) fn release(place: QueuePlace) {
    let umems: Vec<Arc<Umem>> = ALL
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .filter_map(Weak::upgrade)
        .collect();
    for umem in umems {
        let released: Vec<Withheld> =
            umem.withheld().extract_if(.., |withheld| withheld.place == Some(place)).collect();
        released.into_iter().for_each(|withheld| umem.free_part(withheld.part, &withheld.posted));
    }
}

/// A list of so many values of zero.
///
/// # Errors
/// [`io::ErrorKind::OutOfMemory`] if there is no memory for it.
pub(super) fn list<T: Default>(length: usize) -> io::Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(length)?;
    list.resize_with(length, T::default);
    Ok(list)
}

impl Umem {
    fn new(frame_size: u32, frames: u32, parts: usize) -> io::Result<Self> {
        let chunks = parts.checked_mul(frames as usize);
        let length = chunks
            .and_then(|chunks| chunks.checked_mul(frame_size as usize))
            .filter(|&length| length as u64 <= MOST);
        let length = length.ok_or_else(|| {
            let says =
                format!("{parts} times {frames} frames of {frame_size} bytes are more than 16 GiB: fewer queues, or less by frames=N");
            io::Error::new(io::ErrorKind::OutOfMemory, says)
        })?;
        let mapping = Arc::new(Mapping::new(length)?);
        let in_flight = list(parts * frames as usize)?;
        let half = frames as usize / 2;
        let region = |chunk: usize| {
            let owner = Arc::clone(&mapping) as Arc<dyn Any + Send + Sync>;
            // SAFETY: the chunks lie in the mapping, which is zeroed and stays while `owner` lives,
            // and every chunk is in one region. The kernel writes only to chunks that the queue put
            // into the fill ring, which it does when they are not lent.
            let region = unsafe {
                Region::try_shared(
                    owner,
                    mapping.data.add(chunk * frame_size as usize),
                    half,
                    frame_size as usize,
                )
            };
            region.ok_or(io::ErrorKind::OutOfMemory)
        };
        let part = |number| {
            let first = number * frames as usize;
            Ok(Part { number: number as u32, receive: region(first)?, send: region(first + half)? })
        };
        let free = (0..parts).map(part).collect::<io::Result<_>>()?;
        Ok(Umem {
            in_flight: in_flight.into_boxed_slice(),
            mapping,
            frame_size,
            frames,
            free: Mutex::new(free),
            withheld: Mutex::default(),
        })
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<Part>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn withheld(&self) -> MutexGuard<'_, Vec<Withheld>> {
        self.withheld.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a part, and takes the descriptors that refer to each chunk off its count: the kernel
    /// is done with both.
    fn free_part(&self, part: Part, posted: &[u16]) {
        for (chunk, &count) in posted.iter().enumerate().filter(|(_, count)| **count != 0) {
            self.in_flight[chunk].fetch_sub(u32::from(count), Ordering::Release);
        }
        self.free().push_back(part);
    }

    /// Address of the first byte.
    pub(super) fn start(&self) -> u64 {
        self.mapping.data.as_ptr().addr() as u64
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> usize {
        self.mapping.length
    }

    /// Bytes of a chunk.
    pub(super) const fn frame_size(&self) -> u32 {
        self.frame_size
    }

    /// How many chunks there are.
    pub(super) const fn chunks(&self) -> usize {
        self.in_flight.len()
    }

    /// The address, counted from the UMEM's start, of bytes that lie within one chunk that is
    /// received into; `None` for others.
    pub(super) fn locate(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.mapping.data.as_ptr().addr())?;
        if offset >= self.mapping.length || bytes.is_empty() {
            return None;
        }
        let within = offset % self.frame_size as usize;
        let chunk = (offset / self.frame_size as usize) as u32;
        (within + bytes.len() <= self.frame_size as usize && chunk % self.frames < self.frames / 2)
            .then_some(offset as u64)
    }

    /// A descriptor for this chunk goes into a TX ring.
    pub(super) fn post(&self, chunk: u32) {
        // Relaxed: the chunk is lent, and whoever finds it given back has seen this before.
        self.in_flight[chunk as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A descriptor for this chunk came back.
    pub(super) fn complete(&self, chunk: u32) {
        // Release: the kernel has read the chunk.
        self.in_flight[chunk as usize].fetch_sub(1, Ordering::Release);
    }

    /// Is the chunk in a TX ring?
    pub(super) fn is_in_flight(&self, chunk: u32) -> bool {
        self.in_flight[chunk as usize].load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_from_the_same_umem_while_there_is_room() {
        // Sizes that no other test takes.
        let mut first = Lease::take(2048, 64, 2).expect("memory");
        let second = Lease::take(2048, 64, 2).expect("memory");
        let third = Lease::take(2048, 64, 1).expect("memory");
        assert!(Arc::ptr_eq(first[0].umem(), second[1].umem()));
        assert!(!Arc::ptr_eq(first[0].umem(), third[0].umem()), "full");
        assert_eq!(
            [&first[0], &first[1], &second[0], &second[1]].map(Lease::first),
            [0, 64, 128, 192]
        );
        let other = Lease::take(4096, 64, 1).expect("memory");
        assert!(!Arc::ptr_eq(first[0].umem(), other[0].umem()), "another size of chunks");
        let part = first[0].part().expect("once");
        assert_eq!(
            (part.receive.slots(), part.send.slots(), part.receive.slot_size()),
            (32, 32, 2048)
        );
        assert!(first[0].part().is_none());
    }

    #[test]
    fn more_than_may_be_pinned_is_refused() {
        let error = Lease::take(4096, 65536, 64).expect_err("32 GiB");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("more than 16 GiB: fewer queues"), "{error}");
    }

    #[test]
    fn a_list_for_which_there_is_no_memory_is_refused() {
        // More than there are addresses, and more than a length can say.
        for length in [isize::MAX as usize / size_of::<AtomicU32>(), usize::MAX] {
            let error = list::<AtomicU32>(length).map(drop).expect_err("no machine has it");
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{length}");
        }
        assert_eq!(list::<u16>(3).expect("6 bytes"), [0; 3]);
    }

    #[test]
    fn only_whole_pieces_of_receive_chunks_have_an_address() {
        let mut lease = Lease::take(2048, 128, 1).expect("memory").remove(0);
        let umem = Arc::clone(lease.umem());
        let mut part = lease.part().expect("once");
        let buffer = part.receive.lend(3, 256..300).expect("free");
        assert_eq!(umem.locate(buffer.bytes()), Some(3 * 2048 + 256));
        assert_eq!(umem.locate(&buffer.bytes()[10..20]), Some(3 * 2048 + 266));
        assert_eq!(umem.locate(&[]), None);
        assert_eq!(
            umem.locate(part.send.slot_mut(0).expect("free")),
            None,
            "a chunk for sending is never lent"
        );
        assert_eq!(umem.locate(&[0; 10]), None, "not in the UMEM");
        drop(buffer);
    }

    #[test]
    fn a_part_comes_back_with_what_is_still_abroad() {
        let mut lease = Lease::take(2048, 256, 1).expect("memory").remove(0);
        let umem = Arc::clone(lease.umem());
        let mut part = lease.part().expect("once");
        let buffer = part.receive.lend(5, 0..4).expect("free");
        let mut left = vec![0; umem.chunks()];
        (0..3).for_each(|_| umem.post(9));
        umem.complete(9);
        left[9] = 2;
        assert!(umem.is_in_flight(9));
        lease.retire(part.receive, part.send, left);
        drop(lease);
        assert!(!umem.is_in_flight(9), "the socket is closed");
        // The part that came back last is given out last.
        let mut again = Lease::take(2048, 256, LEAST_PARTS).expect("memory");
        assert!(Arc::ptr_eq(again[0].umem(), &umem));
        let part = again[LEAST_PARTS - 1].part().expect("once");
        assert!(part.receive.is_lent(5) && !part.receive.is_lent(4));
        drop(buffer);
        assert!(!part.receive.is_lent(5));
    }

    #[test]
    fn what_the_kernel_may_still_use_is_withheld_until_its_queue_is_bound_again() {
        let place = QueuePlace { namespace: 1, interface: 2, queue: 3 };
        let mut leases = Lease::take(2048, 512, 2).expect("memory");
        let umem = Arc::clone(leases[0].umem());
        leases.extend(Lease::take(2048, 512, LEAST_PARTS - 2).expect("memory"));
        assert!(umem.free().is_empty(), "all of it is taken");
        // Another port keeps the UMEM alive, and its chunk 7 was sent through the closed socket.
        let mut closed = leases.remove(0);
        let part = closed.part().expect("once");
        let chunk = umem.chunks() as u32 - 7;
        let mut left = vec![0; umem.chunks()];
        umem.post(chunk);
        left[chunk as usize] = 1;
        closed.withhold(Some(place));
        closed.retire(part.receive, part.send, left);
        drop(closed);
        let is_withheld = || {
            let other = Lease::take(2048, 512, 1).expect("memory").remove(0);
            umem.is_in_flight(chunk) && !Arc::ptr_eq(other.umem(), &umem)
        };
        assert!(is_withheld(), "not given to another port, and the chunk is not received into");
        for other in [
            QueuePlace { namespace: 9, ..place },
            QueuePlace { interface: 9, ..place },
            QueuePlace { queue: 9, ..place },
        ] {
            release(other);
            assert!(is_withheld(), "{other:?}");
        }
        release(place);
        assert!(!umem.is_in_flight(chunk));
        let again = Lease::take(2048, 512, 1).expect("memory").remove(0);
        assert!(Arc::ptr_eq(again.umem(), &umem));
        assert_eq!(again.first(), 0, "the part is free again");
    }
}
