//! Packet sockets (`packet(7)`): the system calls, and in which order.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::options::{Options, RingOptions};
use crate::port::{PortError, Region};

/// Bytes of frames longer than a slot that may wait in the receive queue, and of frames that may
/// wait to be sent.
const SOCKET_BUFFER: usize = 8 << 20;

/// Bytes of a block for each flag that a frame may be lent under. A frame with its header takes at
/// least 82, so there are always enough.
pub(super) const FLAG: usize = 64;

/// A packet socket of one interface.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    index: u32,
}

/// A receiving socket, and the memory that it shares with the kernel.
#[derive(Debug)]
pub(super) struct Mapped {
    pub socket: Socket,
    /// The memory, in slots as the ring's options say, or in flags of [`FLAG`] bytes for the frames
    /// in blocks.
    pub region: Region,
    /// The kernel leaves out what this machine sends.
    pub ignores_outgoing: bool,
}

impl Socket {
    fn open(port: &str, index: u32) -> Result<Self, PortError> {
        // No protocol: nothing is received until the socket is bound to one.
        let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
        let fd = fd.map_err(|error| PortError::system(port, "opening a packet socket (socket)", error))?;
        let socket = Socket { fd, index };
        let virtio = socket.set(libc::PACKET_VNET_HDR, &1);
        virtio.map_err(|error| PortError::system(port, "asking for virtio headers (PACKET_VNET_HDR)", error))?;
        Ok(socket)
    }

    /// A socket that only sends.
    ///
    /// # Errors
    /// What the system refused.
    pub fn sender(port: &str, index: u32) -> Result<Self, PortError> {
        let socket = Socket::open(port, index)?;
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket.fd, SOCKET_BUFFER).is_err() {
            // Without CAP_NET_ADMIN in the first user namespace the limit is the system's.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket.fd, SOCKET_BUFFER);
        }
        socket.bind(0).map_err(|error| PortError::system(port, "binding the sending socket to the interface (bind)", error))?;
        Ok(socket)
    }

    /// Sockets that receive, one for each queue.
    ///
    /// # Errors
    /// What the system refused.
    pub fn receivers(port: &str, index: u32, options: &Options) -> Result<Vec<Mapped>, PortError> {
        let mut mapped = Vec::new();
        let mut group = None;
        for _ in 0..options.queues {
            let one = Socket::receiver(port, index, options)?;
            let socket = &one.socket;
            let shared = options.queues > 1;
            if shared {
                // Until it has joined the others, it would see their packets too.
                socket.close_filter().map_err(|error| PortError::system(port, "holding packets off (SO_ATTACH_FILTER)", error))?;
            }
            let bound = socket.bind((libc::ETH_P_ALL as u16).to_be());
            bound.map_err(|error| PortError::system(port, "binding the receiving socket to the interface (bind)", error))?;
            if shared {
                let joined = socket.join(options.fanout, group);
                group = Some(joined.map_err(|error| PortError::system(port, "sharing among several queues (PACKET_FANOUT)", error))?);
                socket.open_filter().map_err(|error| PortError::system(port, "letting packets in (SO_DETACH_FILTER)", error))?;
            }
            mapped.push(one);
        }
        Ok(mapped)
    }

    fn receiver(port: &str, index: u32, options: &Options) -> Result<Mapped, PortError> {
        let refused = |action: &'static str| move |error: io::Error| PortError::system(port, action, error);
        let socket = Socket::open(port, index)?;
        let ignores_outgoing = socket.set(libc::PACKET_IGNORE_OUTGOING, &1).is_ok();
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket.fd, SOCKET_BUFFER).is_err() {
            // Without CAP_NET_ADMIN in the first user namespace the limit is the system's.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket.fd, SOCKET_BUFFER);
            let bytes = rustix::net::sockopt::socket_recv_buffer_size(&socket.fd).unwrap_or(0);
            tracing::info!(port, bytes, "no more than net.core.rmem_max for frames longer than a slot");
        }
        let version = match options.ring {
            RingOptions::Slots { .. } => libc::tpacket_versions::TPACKET_V2,
            RingOptions::Blocks { .. } => libc::tpacket_versions::TPACKET_V3,
        };
        socket.set(libc::PACKET_VERSION, &(version as i32)).map_err(refused("choosing the ring's version (PACKET_VERSION)"))?;
        let (set, length, granularity) = match options.ring {
            RingOptions::Slots { slots, slot_size } => {
                // Any other than 0: frames longer than a slot are queued whole.
                socket.set(libc::PACKET_COPY_THRESH, &i32::MAX).map_err(refused("asking for long frames (PACKET_COPY_THRESH)"))?;
                let length = slots * slot_size;
                let block = length.min(slot_size.max(BLOCK));
                let request = libc::tpacket_req {
                    tp_block_size: block as u32,
                    tp_block_nr: (length / block) as u32,
                    tp_frame_size: slot_size as u32,
                    tp_frame_nr: slots as u32,
                };
                (socket.set(libc::PACKET_RX_RING, &request), length, slot_size)
            }
            RingOptions::Blocks { blocks, block_size, retire, hash } => {
                let request = libc::tpacket_req3 {
                    tp_block_size: block_size as u32,
                    tp_block_nr: blocks as u32,
                    // Means nothing but must divide the block.
                    tp_frame_size: 2048,
                    tp_frame_nr: (blocks * block_size / 2048) as u32,
                    tp_retire_blk_tov: retire,
                    tp_sizeof_priv: 0,
                    tp_feature_req_word: if hash { libc::TP_FT_REQ_FILL_RXHASH } else { 0 },
                };
                (socket.set(libc::PACKET_RX_RING, &request), blocks * block_size, FLAG)
            }
        };
        set.map_err(refused("taking memory for the ring (PACKET_RX_RING)"))?;
        if options.promiscuous {
            let request =
                libc::packet_mreq { mr_ifindex: index as i32, mr_type: libc::PACKET_MR_PROMISC as u16, mr_alen: 0, mr_address: [0; 8] };
            socket.set(libc::PACKET_ADD_MEMBERSHIP, &request).map_err(refused("asking for all frames (PACKET_MR_PROMISC)"))?;
        }
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let data =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &socket.fd, 0) };
        let data = data.map_err(|error| refused("mapping the ring (mmap)")(error.into()))?;
        // SAFETY: the kernel maps nothing at address 0 that it was not told to.
        let data = unsafe { NonNull::new_unchecked(data.cast::<u8>()) };
        // SAFETY: the memory was mapped for this ring alone. The kernel writes to a slot or block
        // only while its status says that it is the kernel's; the rings lend bytes after the status
        // said that they are ours, and change it only when nothing of the slot or block is lent.
        let region = unsafe { Region::mapped(data, length, granularity) };
        Ok(Mapped { socket, region, ignores_outgoing })
    }

    /// The socket's error, taken out: `ENETDOWN` when the interface was switched off, or went.
    pub fn take_error(&self) -> Option<io::Error> {
        match rustix::net::sockopt::socket_error(&self.fd) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error.into()),
        }
    }

    /// Does the socket still belong to its interface? One that went, even if it came back, has left
    /// its sockets (`NETDEV_UNREGISTER`).
    pub fn is_attached(&self) -> bool {
        // SAFETY: all bytes zero is an address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: both pointers are to what lives longer than the call, of the length that is said.
        let result = unsafe { libc::getsockname(self.fd.as_raw_fd(), std::ptr::from_mut(&mut address).cast(), &raw mut length) };
        result == 0 && address.sll_ifindex == self.index as i32
    }

    /// Packets that found no room since this was asked last.
    pub fn take_drops(&self) -> u64 {
        // The longer structure, of TPACKET_V3, starts as the other.
        self.get::<libc::tpacket_stats_v3>(libc::PACKET_STATISTICS).map_or(0, |statistics| u64::from(statistics.tp_drops))
    }

    /// Lets nothing in any more.
    ///
    /// # Errors
    /// What the system refused.
    pub fn close_filter(&self) -> io::Result<()> {
        // BPF_RET | BPF_K: of every packet, 0 bytes.
        let mut nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    fn open_filter(&self) -> io::Result<()> {
        self.set_at(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// `protocol` is in network byte order.
    fn bind(&self, protocol: u16) -> io::Result<()> {
        // SAFETY: all bytes zero is an address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = self.index as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointer is to an address of this length.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) })
    }

    /// Joins a group, or founds one, and returns its number.
    fn join(&self, mode: u32, group: Option<u32>) -> io::Result<u32> {
        // The group has a hook of its own: what the sockets ignore must be said again.
        let with = |flags: u32| group.unwrap_or(0) | (mode | flags) << 16;
        let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let joined = self.set(libc::PACKET_FANOUT, &with(unique | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING));
        if joined.is_err() {
            self.set(libc::PACKET_FANOUT, &with(unique))?;
        }
        Ok(self.get::<u32>(libc::PACKET_FANOUT)? & 0xffff)
    }

    fn set<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, option, value)
    }

    fn set_at<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer is to a value of this length, of a type that the option takes.
        check(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length) })
    }

    /// The value of an option that is made of integers; what the kernel leaves out is 0.
    fn get<T: Copy>(&self, option: libc::c_int) -> io::Result<T> {
        let mut value = std::mem::MaybeUninit::<T>::zeroed();
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointers are to a value of this length, and to the length.
        check(unsafe { libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_PACKET, option, value.as_mut_ptr().cast(), &raw mut length) })?;
        // SAFETY: `T` is made of integers (the callers' are), any bytes are a value, and all have
        // been written.
        Ok(unsafe { value.assume_init() })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Slots lie in blocks of this many bytes, or of one slot if that is longer.
const BLOCK: usize = 64 << 10;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
