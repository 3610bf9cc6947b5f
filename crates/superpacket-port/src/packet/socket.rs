//! Packet sockets (`packet(7)`): the system calls and their order.

#![expect(unsafe_code, reason = "it maps the ring")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags};

use super::options::{PacketOptions, RingOptions};
use crate::system::{
    Frames, PACKET_COPY_THRESH, PACKET_FANOUT, PACKET_IGNORE_OUTGOING, PACKET_RX_RING,
    PACKET_RX_RING_V3, PACKET_VERSION, PACKET_VNET_HDR, PacketSocket, SO_DETACH_FILTER,
    attach_filter,
};
use crate::{KernelPath, KernelPathPort, PortError, Region};

/// Size in bytes of the receive queue for frames longer than a slot, and of the send queue.
const SOCKET_BUFFER: usize = 8 << 20;

/// Number of bytes of a block that share one flag for a lent frame. A frame with its header takes
/// at least 82 bytes, so a block always has enough flags.
pub(super) const FLAG: usize = 64;

/// A packet socket of one interface.
#[derive(Debug)]
pub(super) struct Socket {
    socket: PacketSocket,
    index: u32,
    /// Whether the interface was put into promiscuous mode.
    is_promiscuous: bool,
    /// Whether some memory of the ring will still be lent when the socket is dropped.
    ring_outlives: AtomicBool,
    /// Number of packets dropped for lack of room, as reported by the kernel up to the last query.
    drops: AtomicU64,
    /// The kernel path, once the socket's port has joined one.
    kernel_path: OnceLock<KernelPathPort>,
}

/// A receiving socket and its ring, which is shared with the kernel.
#[derive(Debug)]
pub(super) struct MappedRing {
    pub socket: Socket,
    /// The ring's memory. For `TPACKET_V2` it is divided into the ring's slots; for `TPACKET_V3`,
    /// into pieces of [`FLAG`] bytes, which each have a flag for one lent frame.
    pub region: Region,
    /// Whether the kernel does not deliver frames sent by this machine to the socket
    /// (`PACKET_IGNORE_OUTGOING`).
    pub ignores_outgoing: bool,
}

impl Socket {
    fn open(port: &str, index: u32) -> Result<Self, PortError> {
        let refused =
            |action: &'static str| move |error: io::Error| PortError::system(port, action, error);
        let socket = PacketSocket::open().map_err(refused("opening a packet socket (socket)"))?;
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| refused("opening a packet socket (FIONBIO)")(error.into()))?;
        socket
            .set(PACKET_VNET_HDR, 1)
            .map_err(refused("asking for virtio headers (PACKET_VNET_HDR)"))?;
        Ok(Socket {
            socket,
            index,
            is_promiscuous: false,
            ring_outlives: AtomicBool::new(false),
            drops: AtomicU64::new(0),
            kernel_path: OnceLock::new(),
        })
    }

    /// Opens a socket that only sends.
    ///
    /// # Errors
    /// The system call's error.
    pub fn sender(port: &str, index: u32) -> Result<Self, PortError> {
        let sender = Socket::open(port, index)?;
        // Without CAP_NET_ADMIN in the initial user namespace, the system's limit applies.
        let _ = sender.socket.set_send_buffer(SOCKET_BUFFER);
        sender.socket.bind(index, Frames::None).map_err(|error| {
            PortError::system(port, "binding the sending socket to the interface (bind)", error)
        })?;
        Ok(sender)
    }

    /// Opens the receiving sockets, one per queue.
    ///
    /// # Errors
    /// The system call's error.
    pub fn receivers(
        port: &str,
        index: u32,
        options: &PacketOptions,
    ) -> Result<Vec<MappedRing>, PortError> {
        let mut mapped = Vec::new();
        let mut group = None;
        for _ in 0..options.queues {
            let one = Socket::receiver(port, index, options)?;
            let socket = &one.socket;
            let shared = options.queues > 1;
            if shared {
                // Before it joins the group, the socket would also receive the other sockets'
                // packets.
                socket.close_filter().map_err(|error| {
                    PortError::system(port, "holding packets off (SO_ATTACH_FILTER)", error)
                })?;
            }
            let bound = socket.socket.bind(index, Frames::All);
            bound.map_err(|error| {
                PortError::system(
                    port,
                    "binding the receiving socket to the interface (bind)",
                    error,
                )
            })?;
            if shared {
                let joined = socket.join(options.fanout, group);
                group = Some(joined.map_err(|error| {
                    PortError::system(port, "sharing among several queues (PACKET_FANOUT)", error)
                })?);
                socket.open_filter().map_err(|error| {
                    PortError::system(port, "letting packets in (SO_DETACH_FILTER)", error)
                })?;
            }
            mapped.push(one);
        }
        Ok(mapped)
    }

    fn receiver(port: &str, index: u32, options: &PacketOptions) -> Result<MappedRing, PortError> {
        let refused =
            |action: &'static str| move |error: io::Error| PortError::system(port, action, error);
        let mut receiver = Socket::open(port, index)?;
        let socket = &receiver.socket;
        let ignores_outgoing = socket.set(PACKET_IGNORE_OUTGOING, 1).is_ok();
        // Without CAP_NET_ADMIN in the initial user namespace, the system's limit applies.
        if !socket.set_receive_buffer(SOCKET_BUFFER).unwrap_or(false) {
            let bytes = rustix::net::sockopt::socket_recv_buffer_size(socket).unwrap_or(0);
            tracing::info!(
                port,
                bytes,
                "no more than net.core.rmem_max for frames longer than a slot"
            );
        }
        let version = match options.ring {
            RingOptions::Slots { .. } => libc::tpacket_versions::TPACKET_V2,
            RingOptions::Blocks { .. } => libc::tpacket_versions::TPACKET_V3,
        };
        socket
            .set(PACKET_VERSION, version as i32)
            .map_err(refused("choosing the ring's version (PACKET_VERSION)"))?;
        let (set, length, granularity) = match options.ring {
            RingOptions::Slots { slots, slot_size } => {
                // Any value except 0: frames longer than a slot are queued completely.
                socket
                    .set(PACKET_COPY_THRESH, i32::MAX)
                    .map_err(refused("asking for long frames (PACKET_COPY_THRESH)"))?;
                let length = slots * slot_size;
                let block = length.min(slot_size.max(BLOCK));
                let request = libc::tpacket_req {
                    tp_block_size: block as u32,
                    tp_block_nr: (length / block) as u32,
                    tp_frame_size: slot_size as u32,
                    tp_frame_nr: slots as u32,
                };
                (socket.set(PACKET_RX_RING, request), length, slot_size)
            }
            RingOptions::Blocks { blocks, block_size, retire, hash } => {
                let request = libc::tpacket_req3 {
                    tp_block_size: block_size as u32,
                    tp_block_nr: blocks as u32,
                    // Without effect, but must divide the block size.
                    tp_frame_size: 2048,
                    tp_frame_nr: (blocks * block_size / 2048) as u32,
                    tp_retire_blk_tov: retire,
                    tp_sizeof_priv: 0,
                    tp_feature_req_word: if hash { libc::TP_FT_REQ_FILL_RXHASH } else { 0 },
                };
                (socket.set(PACKET_RX_RING_V3, request), blocks * block_size, FLAG)
            }
        };
        set.map_err(refused("taking memory for the ring (PACKET_RX_RING)"))?;
        if options.promiscuous {
            socket
                .add_promiscuous(index)
                .map_err(refused("asking for all frames (PACKET_MR_PROMISC)"))?;
            receiver.is_promiscuous = true;
        }
        let socket = &receiver.socket;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let data = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                socket,
                0,
            )
        };
        let data = data.map_err(|error| refused("mapping the ring (mmap)")(error.into()))?;
        // SAFETY: the kernel chooses no mapping at address 0.
        let data = unsafe { NonNull::new_unchecked(data.cast::<u8>()) };
        // SAFETY: the memory was mapped for this ring alone. The kernel writes to a slot or block
        // only while its status says that the kernel owns it. The rings lend bytes only after the
        // status has changed, and return a slot or block only when none of its bytes is lent.
        let region = unsafe { Region::try_mapped(data, length, granularity) };
        let region = region.ok_or_else(|| {
            refused("allocating the flags of the ring's slots")(io::ErrorKind::OutOfMemory.into())
        })?;
        Ok(MappedRing { socket: receiver, region, ignores_outgoing })
    }

    /// Takes the socket's pending error: `ENETDOWN` after the interface went down or disappeared.
    pub fn take_error(&self) -> Option<io::Error> {
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error.into()),
        }
    }

    /// Returns whether the socket is still bound to its interface. The kernel unbinds sockets when
    /// their interface disappears (`NETDEV_UNREGISTER`), even if it comes back.
    pub fn is_attached(&self) -> bool {
        self.socket.is_bound_to(self.index)
    }

    /// Returns the number of packets dropped for lack of room since the last call.
    pub fn take_drops(&self) -> u64 {
        let drops = self.socket.take_drops().map_or(0, u64::from);
        self.drops.fetch_add(drops, Ordering::Relaxed);
        drops
    }

    /// Returns the sum of all [`take_drops`](Self::take_drops) since the socket was opened.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Relaxed)
    }

    /// Joins a kernel path with this socket, which receives all frames of the port.
    ///
    /// # Errors
    /// The system call's error.
    pub fn join_kernel_path(&self, path: &Arc<KernelPath>) -> io::Result<KernelPathPort> {
        let port = path.attach(self.index, |filter| {
            // While the socket is not bound, no frame arrives uncounted.
            self.socket.bind(self.index, Frames::None)?;
            let (packets, drops) = self.socket.take_statistics().unwrap_or_default();
            self.drops.fetch_add(u64::from(drops), Ordering::Relaxed);
            let attached = self.socket.attach_program(filter);
            self.socket.bind(self.index, Frames::All)?;
            attached.map(|()| u64::from(packets))
        })?;
        Ok(self.kernel_path.get_or_init(|| port).clone())
    }

    /// Returns the kernel path that the socket's port has joined.
    pub fn kernel_path(&self) -> Option<&KernelPathPort> {
        self.kernel_path.get()
    }

    /// Records that memory of the ring is lent, and will still be after the socket is dropped.
    pub fn ring_outlives(&self) {
        self.ring_outlives.store(true, Ordering::Relaxed);
    }

    /// Stops receiving, by a filter that accepts no packet.
    ///
    /// # Errors
    /// The system call's error.
    pub fn close_filter(&self) -> io::Result<()> {
        // BPF_RET | BPF_K: keep 0 bytes of every packet.
        attach_filter(
            &self.socket,
            &[libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }],
        )
    }

    fn open_filter(&self) -> io::Result<()> {
        self.socket.set(SO_DETACH_FILTER, 0)
    }

    /// Joins a fanout group, or creates one. Returns the group's number.
    fn join(&self, mode: u32, group: Option<u32>) -> io::Result<u32> {
        // The group has its own hook into the kernel's receive path, so it must be told again to
        // ignore outgoing frames.
        let with = |flags: u32| group.unwrap_or(0) | (mode | flags) << 16;
        let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let joined =
            self.socket.set(PACKET_FANOUT, with(unique | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING));
        if joined.is_err() {
            self.socket.set(PACKET_FANOUT, with(unique))?;
        }
        Ok(self.socket.get(PACKET_FANOUT)? & 0xffff)
    }
}

impl Drop for Socket {
    /// Undoes settings that would otherwise stay until the ring is unmapped, since a mapping keeps
    /// its socket open.
    fn drop(&mut self) {
        if !self.ring_outlives.load(Ordering::Relaxed) {
            return;
        }
        if self.is_promiscuous {
            // If the interface no longer exists, this fails, and is not needed.
            let _ = self.socket.drop_promiscuous(self.index);
        }
        // Fails for a socket in a fanout group (`PACKET_FANOUT`), whose filter then accepts no
        // packet.
        let _ = self.socket.unbind();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Size in bytes of the blocks in which the kernel allocates a ring of slots, unless a slot is
/// longer than this.
const BLOCK: usize = 64 << 10;
