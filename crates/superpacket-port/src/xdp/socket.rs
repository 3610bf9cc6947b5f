//! AF_XDP sockets: memory, rings, and binding to a queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::ring::{Consumer, Producer};
use super::umem::Umem;
use crate::system::{
    PacketSocket, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, SO_PREFER_BUSY_POLL, XDP_MAX_TX_SKB_BUDGET,
};

/// Time for which a queue may stay busy after its socket was closed: the kernel releases it in
/// deferred work.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which registering memory waits until the kernel has released the memory of a closed
/// socket. It does so in deferred work, and charges the memory until then.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// Size in bytes of a socket's send buffer, which limits the sent frames that a device may hold.
/// The default of about 200 KB would be only a hundred frames.
const SEND_BUFFER: usize = 16 << 20;

/// Maximum number of frames that one busy poll of the device processes.
const BUSY_POLL_BUDGET: libc::c_int = 64;

/// A failed system call.
#[derive(Debug)]
pub(super) struct CallError {
    /// The attempted action.
    pub(super) action: &'static str,
    pub(super) error: io::Error,
}

impl CallError {
    fn at(action: &'static str) -> impl Fn(Errno) -> CallError {
        move |error| CallError { action, error: error.into() }
    }
}

/// A socket with its rings, which are unmapped before it is closed.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) rx: Consumer<XdpDesc>,
    pub(super) fill: Producer<u64>,
    pub(super) tx: Producer<XdpDesc>,
    pub(super) completion: Consumer<u64>,
    pub(super) descriptor: OwnedFd,
}

impl Socket {
    /// Opens a socket with rings of `ring_size` entries. It registers `umem` as its memory; with
    /// `None`, it will share a UMEM when it is bound.
    ///
    /// # Errors
    /// The failed action and the system's error.
    pub(super) fn open(umem: Option<&Umem>, ring_size: u32) -> Result<Self, CallError> {
        let failed = CallError::at;
        let descriptor = rustix::net::socket_with(
            AddressFamily::XDP,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed("opening an AF_XDP socket (socket)"))?;
        if let Some(umem) = umem {
            register(descriptor.as_fd(), umem).map_err(failed(
                "pinning memory for frames (XDP_UMEM_REG; without CAP_IPC_LOCK, RLIMIT_MEMLOCK limits it, and frames=N asks for less)",
            ))?;
        }
        sockopt::set_xdp_umem_fill_ring_size(&descriptor, ring_size)
            .map_err(failed("making a ring (XDP_UMEM_FILL_RING)"))?;
        sockopt::set_xdp_umem_completion_ring_size(&descriptor, ring_size)
            .map_err(failed("making a ring (XDP_UMEM_COMPLETION_RING)"))?;
        sockopt::set_xdp_rx_ring_size(&descriptor, ring_size)
            .map_err(failed("making a ring (XDP_RX_RING)"))?;
        sockopt::set_xdp_tx_ring_size(&descriptor, ring_size)
            .map_err(failed("making a ring (XDP_TX_RING)"))?;
        let offsets = sockopt::xdp_mmap_offsets(&descriptor)
            .map_err(failed("asking for the rings' layout (XDP_MMAP_OFFSETS)"))?;
        let mapping = |error| CallError { action: "mapping a ring (mmap)", error };
        let socket = descriptor.as_fd();
        Ok(Socket {
            rx: Consumer::map(socket, XDP_PGOFF_RX_RING, &offsets.rx, ring_size)
                .map_err(mapping)?,
            fill: Producer::map(socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, ring_size)
                .map_err(mapping)?,
            tx: Producer::map(socket, XDP_PGOFF_TX_RING, &offsets.tx, ring_size)
                .map_err(mapping)?,
            completion: Consumer::map(
                socket,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                ring_size,
            )
            .map_err(mapping)?,
            descriptor,
        })
    }

    /// Increases the number of frames sent per system call, and enables busy polling for
    /// `busy_poll` microseconds. Settings that the kernel refuses only reduce the speed.
    pub(super) fn tune(&self, busy_poll: u32) {
        if sockopt::set_socket_send_buffer_size_force(&self.descriptor, SEND_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&self.descriptor, SEND_BUFFER);
        }
        let limit = libc::c_int::try_from(crate::POLL_LIMIT).unwrap_or(libc::c_int::MAX);
        drop(XDP_MAX_TX_SKB_BUDGET.set(&self.descriptor, limit));
        if busy_poll != 0 {
            let time = libc::c_int::try_from(busy_poll).unwrap_or(libc::c_int::MAX);
            for (name, option, value) in [
                ("SO_PREFER_BUSY_POLL", SO_PREFER_BUSY_POLL, 1),
                ("SO_BUSY_POLL", SO_BUSY_POLL, time),
                ("SO_BUSY_POLL_BUDGET", SO_BUSY_POLL_BUDGET, BUSY_POLL_BUDGET),
            ] {
                if let Err(error) = option.set(&self.descriptor, value) {
                    tracing::warn!(%error, option = name, "busy polling was refused");
                }
            }
        }
    }
}

/// Registers `umem` for the socket. The kernel charges its whole length to the user.
fn register(socket: BorrowedFd<'_>, umem: &Umem) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        let registration = XdpUmemReg {
            addr: umem.start(),
            len: umem.length() as u64,
            chunk_size: umem.frame_size(),
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        match sockopt::set_xdp_umem_reg(socket, registration) {
            Err(Errno::NOBUFS) if start.elapsed() < RELEASE_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5))
            }
            result => return result,
        }
    }
}

/// Binds a socket to `queue` of the interface with index `interface`: with `flags`, or sharing the
/// UMEM and the flags of the bound socket `shared`. Retries a busy queue for two seconds.
///
/// # Errors
/// The error of `bind`.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    flags: SocketAddrXdpFlags,
    shared: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let attempt = || match shared {
        None => rustix::net::bind(
            socket,
            &SocketAddrXdp::new(flags | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, interface, queue),
        ),
        Some(shared_umem_fd) => {
            let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue);
            rustix::net::bind(socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
        }
    };
    let start = Instant::now();
    loop {
        match attempt() {
            Err(Errno::BUSY) if start.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5))
            }
            result => return Ok(result?),
        }
    }
}

/// Returns whether sockets that share a UMEM may have frames in several chunks if the first socket
/// may. They may since Linux 6.7 (`XDP_UMEM_SG_FLAG`); older kernels silently drop such frames.
pub(super) fn sharing_keeps_several() -> bool {
    rustix::system::uname().release().to_str().is_ok_and(|release| is_at_least(release, (6, 7)))
}

/// Returns whether a kernel release, such as `6.12.1-arch1`, is at least this version.
fn is_at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|found| found >= version)
}

/// Puts the interface into promiscuous mode while the returned socket is open
/// (`PACKET_MR_PROMISC`).
///
/// # Errors
/// The system call's error.
pub(super) fn promiscuous(interface: u32) -> io::Result<PacketSocket> {
    let socket = PacketSocket::open()?;
    socket.add_promiscuous(interface)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for release in ["6.7.0", "6.18.44-fc", "6.10-rc3", "7.0.0", "10.1"] {
            assert!(is_at_least(release, (6, 7)), "{release}");
        }
        for release in ["6.6.99-lts", "5.15.0-91-generic", "6", "", "six.seven"] {
            assert!(!is_at_least(release, (6, 7)), "{release}");
        }
    }
}
