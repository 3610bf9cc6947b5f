//! A connection with a front end: the memory, the rings and the features that it has set.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, VhostUserBackendReqHandlerMut};

use super::features::GuestFeatures;
use super::memory::{GuestMemory, MemoryTrust, RegionPlace};
use super::ring::{Direction, MAX_RING_SIZE, RingPlace, SplitRing};
use super::shared::{ActiveRing, QueuePair, RingSlot, VhostShared, lock};

type Result<T> = std::result::Result<T, Error>;

fn refused(problem: impl ToString) -> Error {
    Error::ReqHandlerError(io::Error::other(problem.to_string()))
}

/// The settings of one ring that the front end has sent.
#[derive(Debug, Default)]
struct RingSetup {
    place: RingPlace,
    /// Index of the available ring at which the ring was stopped, and at which another device can
    /// continue.
    next: u16,
    /// The eventfd by which the guest notifies the device. A ring runs only if it has one.
    kick: Option<OwnedFd>,
    /// The eventfd by which the device notifies the guest.
    call: Option<OwnedFd>,
    is_enabled: bool,
    is_running: bool,
}

/// One connection with a front end. Its rings are removed when it is dropped.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<VhostShared>,
    trust: MemoryTrust,
    features: GuestFeatures,
    protocol_features: u64,
    memory: Arc<GuestMemory>,
    /// The rings of all pairs: first the one from which the guest receives, then the one by which
    /// it sends.
    rings: Vec<RingSetup>,
}

impl Session {
    pub(super) fn new(shared: Arc<VhostShared>, trust: MemoryTrust) -> Self {
        let rings = (0..2 * shared.pairs.len()).map(|_| RingSetup::default()).collect();
        Session {
            shared,
            trust,
            features: GuestFeatures::default(),
            protocol_features: 0,
            memory: Arc::default(),
            rings,
        }
    }

    /// Returns whether the features that the front end has accepted require it to enable rings by
    /// messages.
    pub(super) const fn has_features(&self) -> bool {
        self.features.enables_rings()
    }

    /// Returns whether the front end has asked for acknowledgements of requests that have no reply
    /// of their own (`REPLY_ACK`).
    pub(super) const fn answers(&self) -> bool {
        self.protocol_features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    fn queues(&self) -> u16 {
        self.shared.pairs.len() as u16
    }

    /// Converts the number of a ring to an index in `rings`, if there is such a ring.
    fn index(&self, index: u32) -> Result<usize> {
        let found = usize::try_from(index).ok().filter(|index| *index < self.rings.len());
        found.ok_or_else(|| refused(format!("there is no ring {index}")))
    }

    /// Returns the settings of a ring, or an error if it runs, since settings cannot change
    /// meanwhile.
    fn stopped(&mut self, index: u32) -> Result<&mut RingSetup> {
        let index = self.index(index)?;
        let ring = &mut self.rings[index];
        if ring.is_running {
            return Err(refused(format!("ring {index} is changed while it runs")));
        }
        Ok(ring)
    }

    fn pair(&self, index: usize) -> (&QueuePair, &RingSlot, Direction) {
        let pair = &self.shared.pairs[index / 2];
        if index.is_multiple_of(2) {
            (pair, &pair.to_guest, Direction::ToGuest)
        } else {
            (pair, &pair.from_guest, Direction::FromGuest)
        }
    }

    /// Starts or stops a ring according to its settings.
    fn reconcile(&mut self, index: usize) -> Result<()> {
        let ring = &self.rings[index];
        let is_enabled = ring.is_enabled || !self.features.enables_rings();
        match (ring.kick.is_some() && is_enabled, ring.is_running) {
            (true, false) => self.run(index),
            (false, true) => {
                self.stop(index);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn run(&mut self, index: usize) -> Result<()> {
        let (pair, slot, direction) = self.pair(index);
        let setup = &self.rings[index];
        let event_index = self.features.has_event_index();
        let ring = SplitRing::new(Arc::clone(&self.memory), setup.place, direction, event_index)
            .map_err(refused)?;
        if let (Direction::FromGuest, Some(kick)) = (direction, &setup.kick) {
            pair.watch(kick).map_err(Error::ReqHandlerError)?;
        }
        let call = setup.call.as_ref().map(OwnedFd::try_clone).transpose();
        let call = call.map_err(Error::ReqHandlerError)?;
        *lock(slot) = Some(ActiveRing { ring, features: self.features, call });
        self.shared.running.fetch_add(1, Ordering::Relaxed);
        // What the guest sent before is not announced again.
        pair.wake();
        self.rings[index].is_running = true;
        Ok(())
    }

    fn stop(&mut self, index: usize) {
        if !std::mem::take(&mut self.rings[index].is_running) {
            return;
        }
        let (pair, slot, direction) = self.pair(index);
        if let (Direction::FromGuest, Some(kick)) = (direction, &self.rings[index].kick) {
            pair.unwatch(kick);
        }
        let stopped = lock(slot).take();
        self.shared.running.fetch_sub(1, Ordering::Relaxed);
        if let Some(active) = stopped {
            self.rings[index].next = active.ring.next();
        }
    }

    fn stop_all(&mut self) {
        for index in 0..self.rings.len() {
            self.stop(index);
            self.rings[index] = RingSetup::default();
        }
    }

    /// Replaces the guest's memory, also for the rings that run.
    fn set_memory(&mut self, memory: GuestMemory) -> Result<()> {
        self.memory = Arc::new(memory);
        for index in 0..self.rings.len() {
            if !self.rings[index].is_running {
                continue;
            }
            let (_, slot, _) = self.pair(index);
            let mut slot = lock(slot);
            if let Some(ActiveRing { ring, features, call }) = slot.take() {
                let place = self.rings[index].place;
                let ring = ring.moved(Arc::clone(&self.memory), place).map_err(refused)?;
                *slot = Some(ActiveRing { ring, features, call });
            }
        }
        Ok(())
    }

    /// Returns the size in bytes of the shared area in which a device records the buffers that it
    /// has taken (vhost-user, "Inflight I/O tracking"), or an error if the requested numbers are
    /// too large.
    fn inflight_size(&self, inflight: &VhostUserInflight) -> Result<u64> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        if usize::from(queues) > self.rings.len() || size > MAX_RING_SIZE {
            return Err(refused("more rings or descriptors in flight than there are"));
        }
        Ok(u64::from(queues) * (16 + 16 * u64::from(size)).next_multiple_of(64))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop_all();
        self.shared.set_features(GuestFeatures::default());
    }
}

/// Checks that a descriptor is an eventfd, since watching other files may block. Makes it
/// non-blocking and close-on-exec.
fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    let Some(file) = file else { return Ok(None) };
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if link.map_err(Error::ReqHandlerError)?.as_os_str() != "anon_inode:[eventfd]" {
        return Err(refused("a notification is no eventfd"));
    }
    set_flags(file.as_fd()).map_err(|error| Error::ReqHandlerError(error.into()))?;
    Ok(Some(file.into()))
}

fn set_flags(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK)?;
    rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC)
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(GuestFeatures::offered(self.queues()).0)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !GuestFeatures::offered(self.queues()).0 != 0 {
            return Err(refused("features that were not offered"));
        }
        let features = GuestFeatures(features);
        if features != self.features && self.rings.iter().any(|ring| ring.is_running) {
            return Err(refused("features are changed while rings run"));
        }
        self.features = features;
        self.shared.set_features(features);
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = GuestMemory::default();
        for (region, file) in regions.iter().zip(&files) {
            memory = memory
                .with_region(place(region), file, self.trust)
                .map_err(Error::ReqHandlerError)?;
        }
        self.set_memory(memory).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        self.stopped(index)?.place.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let ring = self.stopped(index)?;
        let size = ring.place.size;
        ring.place = RingPlace { size, descriptors, available, used };
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(refused)?;
        self.stopped(index)?.next = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.index(index)?;
        self.stop(ring);
        let setup = &mut self.rings[ring];
        (setup.kick, setup.call) = (None, None);
        Ok(VhostUserVringState::new(index, u32::from(setup.next)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = self.index(u32::from(index))?;
        let kick = event(file)?.ok_or_else(|| refused("a ring without notification"))?;
        // The ring may run with another descriptor.
        self.stop(index);
        self.rings[index].kick = Some(kick);
        self.reconcile(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = self.index(u32::from(index))?;
        let call = event(file)?;
        let copy = call.as_ref().map(OwnedFd::try_clone).transpose();
        let copy = copy.map_err(Error::ReqHandlerError)?;
        if let Some(active) = &mut *lock(self.pair(index).1) {
            active.call = copy;
        }
        self.rings[index].call = call;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        // Errors end the connection, which says more.
        self.index(u32::from(index)).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_protocol_features()?.bits() != 0 {
            return Err(refused("protocol features that were not offered"));
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.queues()))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let index = self.index(index)?;
        self.rings[index].is_enabled = enable;
        self.reconcile(index)
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        // Buffers are returned in the order in which they were taken, before a ring is left alone:
        // whoever takes over a ring finds none in flight. So the area stays as it is.
        let size = self.inflight_size(inflight)?;
        let make = || -> rustix::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("inflight", flags)?;
            rustix::fs::ftruncate(&file, size)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&file, seals)?;
            Ok(file)
        };
        let file = make().map_err(|error| Error::ReqHandlerError(error.into()))?;
        let (queues, descriptors) = (inflight.num_queues, inflight.queue_size);
        Ok((VhostUserInflight::new(size, 0, queues, descriptors), file.into()))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, _: File) -> Result<()> {
        if self.inflight_size(inflight)? > inflight.mmap_size {
            return Err(refused("the area of buffers in flight is too short"));
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(GuestMemory::MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        let memory = self.memory.with_region(place(region), &file, self.trust);
        self.set_memory(memory.map_err(Error::ReqHandlerError)?).map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without_region(&place(region));
        self.set_memory(memory.ok_or_else(|| refused("there is no such memory region"))?)
    }

    // What follows belongs to features that are not offered.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InvalidMessage)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InvalidMessage)
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidMessage)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidMessage)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidMessage)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidMessage)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidMessage)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidMessage)
    }
}

fn place(region: &VhostUserMemoryRegion) -> RegionPlace {
    RegionPlace {
        guest_address: region.guest_phys_addr,
        user_address: region.user_addr,
        length: region.memory_size,
        offset: region.mmap_offset,
    }
}
