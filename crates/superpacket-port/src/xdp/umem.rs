//! The memory from which AF_XDP sockets receive and send (UMEM), shared by all ports of the
//! process, so that frames are forwarded in place.
//!
//! The first socket registers the pages with the kernel, which charges their length to the user.
//! Other sockets share the registration (`XDP_SHARED_UMEM`), with separate fill and completion
//! rings; it lasts until the last one is closed. A socket that cannot share it registers the pages
//! again: another copy mode, or any before Linux 5.10. An address means the same chunk to all.
//!
//! A UMEM is divided into parts of equal size, one per queue of a port. The first half of a part's
//! chunks is for receiving. The second half is for frames that do not lie in chunks. The owner of a
//! chunk:
//!
//! ```text
//! fill ring -> kernel -> RX ring -> lent (a Buffer) -> dropped, and not in flight -> fill ring
//!                                        |
//!                                        +-> TX ring of any port: in flight until its completion
//! ```
//! A closed socket returns its part, and all chunks that its TX ring referred to. If the kernel may
//! still use them, they are withheld until another socket is bound to the same queue of the same
//! interface: the kernel allows that only when it has finished with the previous one.

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

/// Minimum number of parts of a UMEM: enough for two ports with two queues each.
const MIN_PARTS: usize = 4;

/// Maximum size of a UMEM in bytes; all of it is pinned.
const MAX_UMEM_BYTES: u64 = 16 << 30;

/// All UMEMs of this process.
static ALL: Mutex<Vec<Weak<Umem>>> = Mutex::new(Vec::new());

/// Memory divided into chunks, from which AF_XDP sockets receive and send.
pub(super) struct Umem {
    mapping: Arc<Mapping>,
    frame_size: u32,
    /// Number of chunks in each part of the UMEM.
    frames: u32,
    /// Number of descriptors in TX rings that refer to each chunk.
    in_flight: Box<[AtomicU32]>,
    /// The parts that no queue uses. The part returned first is used next.
    free: Mutex<VecDeque<UmemPart>>,
    /// Memory of closed sockets that the kernel may still use.
    withheld: Mutex<Vec<WithheldPart>>,
}

/// Identifies a queue of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace {
    /// The network namespace's number (`SO_NETNS_COOKIE`).
    pub(super) namespace: u64,
    /// The interface's index in that namespace.
    pub(super) interface: u32,
    /// The queue's number.
    pub(super) queue: u32,
}

/// Memory of a closed socket that the kernel may still use.
#[derive(Debug)]
struct WithheldPart {
    /// The queue to which the socket was bound; `None` if unknown, in which case the memory is
    /// withheld forever.
    place: Option<QueuePlace>,
    part: UmemPart,
    /// For each chunk of the UMEM, the number of descriptors of the closed socket that were not
    /// completed.
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

/// Mapped pages, unmapped when no region uses them any more.
#[derive(Debug)]
struct Mapping {
    data: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is only an address range; the regions made of it decide who accesses which
// bytes.
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
        // Large pages save TLB entries, and child processes need no copy of pinned pages. Both are
        // optional.
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork] {
            // SAFETY: the range is the mapping. Large pages do not change its content. A child
            // without it never runs this code: it executes another program at once (`exec`), or is
            // a copy of one thread, in which no Rust code may access what other threads own.
            let _ = unsafe { rustix::mm::madvise(mapping.data.as_ptr().cast(), length, advice) };
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `new`. Regions and their buffers keep the mapping
        // alive, so none is left. The kernel keeps its own references to pinned pages.
        let _ = unsafe { rustix::mm::munmap(self.data.as_ptr().cast(), self.length) };
    }
}

/// The chunks of one queue: a part of a UMEM.
#[derive(Debug)]
pub(super) struct UmemPart {
    number: u32,
    /// Chunks into which frames are received.
    pub(super) receive: Region,
    /// Chunks into which frames to be sent are copied.
    pub(super) send: Region,
}

/// The exclusive use of a part of a UMEM. The part returns to the UMEM when this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    umem: Arc<Umem>,
    number: u32,
    part: Option<UmemPart>,
    /// For each chunk of the UMEM, the number of the closed socket's descriptors that were not
    /// completed.
    left: Vec<u16>,
    /// Set if the kernel may still use the part, and the chunks counted in `left`, after the socket
    /// is closed. The inner value is the queue to which the socket was bound, as in
    /// [`WithheldPart::place`].
    in_use: Option<Option<QueuePlace>>,
}

impl Lease {
    /// Takes `count` parts of `frames` chunks of `frame_size` bytes, all in one UMEM: an existing
    /// one with enough free parts, or a new one.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`], or the error of `mmap`.
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
                // Leaves room for a second port with as many queues.
                let umem = Arc::new(Umem::new(frame_size, frames, (count * 2).max(MIN_PARTS))?);
                all.push(Arc::downgrade(&umem));
                umem
            }
        };
        let parts: Vec<UmemPart> = umem.free().drain(..count).collect();
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

    /// Takes the part of `umem` that was returned last or, if no part is free, a part with as many
    /// chunks of the same size in another UMEM.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
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

    /// Returns the UMEM that the part belongs to.
    pub(super) const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Returns the number of the part's first chunk in the UMEM, which is its first receive chunk.
    pub(super) fn first(&self) -> u32 {
        self.number * self.umem.frames
    }

    /// Takes the part out of the lease, once; [`retire`](Self::retire) returns it.
    pub(super) fn part(&mut self) -> Option<UmemPart> {
        self.part.take()
    }

    /// Puts the part back into the lease, to be freed when the lease is dropped. `left` is the
    /// number of incomplete descriptors per chunk of the UMEM. The socket must be closed before the
    /// lease is dropped.
    pub(super) fn retire(&mut self, receive: Region, send: Region, left: Vec<u16>) {
        self.part = Some(UmemPart { number: self.number, receive, send });
        self.left = left;
    }

    /// Records that the kernel may still use the memory after the socket is closed. `place` is the
    /// queue to which it was bound, if known.
    pub(super) const fn withhold(&mut self, place: Option<QueuePlace>) {
        self.in_use = Some(place);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (part, posted) = (self.part.take(), std::mem::take(&mut self.left));
        match (part, self.in_use) {
            (Some(part), Some(place)) => {
                self.umem.withheld().push(WithheldPart { place, part, posted })
            }
            (Some(part), None) => self.umem.free_part(part, &posted),
            (None, _) => {}
        }
    }
}

/// Frees the memory withheld for the queue `place`, after another socket was bound to it.
pub(super) fn release(place: QueuePlace) {
    let umems: Vec<Arc<Umem>> = ALL
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .filter_map(Weak::upgrade)
        .collect();
    for umem in umems {
        let released: Vec<WithheldPart> =
            umem.withheld().extract_if(.., |withheld| withheld.place == Some(place)).collect();
        released.into_iter().for_each(|withheld| umem.free_part(withheld.part, &withheld.posted));
    }
}

/// Returns a list of `length` default values.
///
/// # Errors
/// [`io::ErrorKind::OutOfMemory`] if there is not enough memory.
pub(super) fn zeroed_list<T: Default>(length: usize) -> io::Result<Vec<T>> {
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
            .filter(|&length| length as u64 <= MAX_UMEM_BYTES);
        let length = length.ok_or_else(|| {
            let says =
                format!("{parts} times {frames} frames of {frame_size} bytes exceed 16 GiB: use fewer queues or a smaller frames=N");
            io::Error::new(io::ErrorKind::OutOfMemory, says)
        })?;
        let mapping = Arc::new(Mapping::new(length)?);
        let in_flight = zeroed_list(parts * frames as usize)?;
        let half = frames as usize / 2;
        let region = |chunk: usize| {
            let owner = Arc::clone(&mapping) as Arc<dyn Any + Send + Sync>;
            // SAFETY: the chunks lie in the mapping, which is zeroed and lives as long as `owner`,
            // and each chunk is in one region. The kernel writes only to chunks in the fill ring,
            // where the queue puts them only when they are not lent.
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
            Ok(UmemPart {
                number: number as u32,
                receive: region(first)?,
                send: region(first + half)?,
            })
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

    fn free(&self) -> MutexGuard<'_, VecDeque<UmemPart>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn withheld(&self) -> MutexGuard<'_, Vec<WithheldPart>> {
        self.withheld.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a part of the UMEM. `posted[i]` is the number of descriptors of chunk `i` that are no
    /// longer in flight. The kernel must have finished with the part and with these descriptors.
    fn free_part(&self, part: UmemPart, posted: &[u16]) {
        for (chunk, &count) in posted.iter().enumerate().filter(|(_, count)| **count != 0) {
            self.in_flight[chunk].fetch_sub(u32::from(count), Ordering::Release);
        }
        self.free().push_back(part);
    }

    /// Returns the address of the UMEM's first byte.
    pub(super) fn start(&self) -> u64 {
        self.mapping.data.as_ptr().addr() as u64
    }

    /// Returns the length of the UMEM in bytes.
    pub(super) fn length(&self) -> usize {
        self.mapping.length
    }

    /// Returns the size of a chunk in bytes.
    pub(super) const fn frame_size(&self) -> u32 {
        self.frame_size
    }

    /// Returns the number of chunks in the UMEM.
    pub(super) const fn chunks(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the offset in the UMEM of bytes that lie within one receive chunk; `None` for other
    /// bytes.
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

    /// Records that a descriptor for this chunk is put into a TX ring.
    pub(super) fn post(&self, chunk: u32) {
        // Relaxed: the chunk is lent, so anyone who sees it returned has also seen this.
        self.in_flight[chunk as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a descriptor for this chunk was completed.
    pub(super) fn complete(&self, chunk: u32) {
        // Release: the kernel has read the chunk.
        self.in_flight[chunk as usize].fetch_sub(1, Ordering::Release);
    }

    /// Returns whether a TX ring refers to the chunk.
    pub(super) fn is_in_flight(&self, chunk: u32) -> bool {
        self.in_flight[chunk as usize].load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_from_the_same_umem_while_there_is_room() {
        // Sizes that no other test uses.
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
        assert!(error.to_string().contains("exceed 16 GiB: use fewer queues"), "{error}");
    }

    #[test]
    fn a_list_for_which_there_is_no_memory_is_refused() {
        // More than the address space, and more than a length can express.
        for length in [isize::MAX as usize / size_of::<AtomicU32>(), usize::MAX] {
            let error = zeroed_list::<AtomicU32>(length).map(drop).expect_err("no machine has it");
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{length}");
        }
        assert_eq!(zeroed_list::<u16>(3).expect("6 bytes"), [0; 3]);
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
        // The part returned last is used last.
        let mut again = Lease::take(2048, 256, MIN_PARTS).expect("memory");
        assert!(Arc::ptr_eq(again[0].umem(), &umem));
        let part = again[MIN_PARTS - 1].part().expect("once");
        assert!(part.receive.is_lent(5) && !part.receive.is_lent(4));
        drop(buffer);
        assert!(!part.receive.is_lent(5));
    }

    #[test]
    fn what_the_kernel_may_still_use_is_withheld_until_its_queue_is_bound_again() {
        let place = QueuePlace { namespace: 1, interface: 2, queue: 3 };
        let mut leases = Lease::take(2048, 512, 2).expect("memory");
        let umem = Arc::clone(leases[0].umem());
        leases.extend(Lease::take(2048, 512, MIN_PARTS - 2).expect("memory"));
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
