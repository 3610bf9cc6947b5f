//! The socket that a sender and a receiver share.

use std::io;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::net::Ipv4Addr;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quinn_udp::{UdpSockRef, UdpSocketState};

use crate::Destination;
use crate::sender::{Refusal, RefusalCause, SendDatagrams};
use crate::transmit::Transmit;

/// A UDP socket that sends and receives runs of datagrams. Clones are the same socket.
#[derive(Clone, Debug)]
pub struct UdpSocket(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: std::net::UdpSocket,
    is_ipv6: bool,
    state: UdpSocketState,
    /// The most datagrams of a run. `quinn-udp`'s own figure falls to 1 for good after an error.
    max_segments: usize,
    /// Runs of datagrams leave in one call.
    segmentation: AtomicBool,
    refusal: Mutex<Option<Refusal>>,
    /// Somebody has been told of a run of datagrams that exceed the path MTU.
    told_too_long: AtomicBool,
}

/// What becomes of datagrams that are longer than the path MTU.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fragmentation {
    /// They are sent in IP fragments. IPv4 datagrams have no don't-fragment bit, so that routers
    /// may fragment them too; IPv6 datagrams are fragmented by this host, once it has learnt the
    /// path MTU. For tunnels, which cannot make their datagrams shorter.
    #[default]
    Allowed,
    /// They are lost, with all of their run, or refused with `EMSGSIZE` where they exceed the MTU
    /// of the interface. IPv4 datagrams have the don't-fragment bit. For protocols that find out
    /// the path MTU themselves, as QUIC does.
    Forbidden,
}

/// Bytes that a socket keeps of what was not received or sent yet, as the kernel counts them: its
/// own structures included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Of datagrams that have arrived (`SO_RCVBUF`).
    pub receive: usize,
    /// Of datagrams that have not left (`SO_SNDBUF`).
    pub send: usize,
}

/// What a new socket asks for: some 60 runs of 64 KB each way.
const WANTED: usize = 4 << 20;

impl UdpSocket {
    /// Binds a socket, with large buffers as far as the system grants them.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let socket = Self::from_std(std::net::UdpSocket::bind(addr)?)?;
        // What it got, `buffer_sizes` tells.
        let _ = socket.set_buffer_sizes(WANTED, WANTED);
        Ok(socket)
    }

    /// Takes a socket that has been bound, and set up otherwise. It is switched to nonblocking, and
    /// to what `quinn-udp` needs: ECN bits and destination addresses received, and GRO. There are
    /// no timestamps. IP fragments are allowed on Linux and Android (`set_fragmentation` changes
    /// this), and forbidden elsewhere.
    ///
    /// # Errors
    /// The system's.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // `quinn-udp` 0.6 has room for 96 bytes of control messages. With a timestamp, a run's
        // stride and the destination's address there is none left for the ECN bits of IPv4.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::ReceiveTimestampns,
            &false,
        )?;
        let max_segments = state.max_gso_segments();
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let socket = UdpSocket(Arc::new(Shared {
            socket,
            is_ipv6,
            state,
            max_segments,
            segmentation: AtomicBool::new(true),
            refusal: Mutex::new(None),
            told_too_long: AtomicBool::new(false),
        }));
        #[cfg(any(target_os = "linux", target_os = "android"))]
        socket.set_fragmentation(Fragmentation::default())?;
        Ok(socket)
    }

    /// Sets what becomes of datagrams that are longer than the path MTU, for all that is sent from
    /// now on. [`Fragmentation::Allowed`] from the start.
    ///
    /// # Errors
    /// The system's.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn set_fragmentation(&self, fragmentation: Fragmentation) -> io::Result<()> {
        use nix::sys::socket::{setsockopt, sockopt};
        use rustix::net::sockopt::{
            Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
        };

        let socket = &self.0.socket;
        let (ipv4, ipv6, whole) = match fragmentation {
            Fragmentation::Allowed => {
                (Ipv4PathMtuDiscovery::DONT, Ipv6PathMtuDiscovery::DONT, false)
            }
            Fragmentation::Forbidden => {
                (Ipv4PathMtuDiscovery::PROBE, Ipv6PathMtuDiscovery::PROBE, true)
            }
        };
        // Of a socket of IPv6 too, which sends to IPv4 addresses as mapped ones.
        set_ip_mtu_discover(socket, ipv4)?;
        if self.0.is_ipv6 {
            set_ipv6_mtu_discover(socket, ipv6)?;
            // IPv6 datagrams that exceed the interface's MTU are fragmented whatever the other
            // option says (`__ip6_append_data`), unless this is set.
            setsockopt(socket, sockopt::Ipv6DontFrag, &whole)?;
        }
        Ok(())
    }

    /// Returns the path MTU in bytes, as this host knows it: asked of another socket, since only
    /// one that is connected is told.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn path_mtu(&self, destination: &Destination) -> io::Result<usize> {
        use nix::sys::socket::{getsockopt, setsockopt, sockopt};
        use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

        let mut to = destination.addr;
        to.set_ip(to.ip().to_canonical());
        let source = destination.src_ip.unwrap_or(self.local_addr()?.ip()).to_canonical();
        let source = match to {
            SocketAddr::V4(_) if source.is_ipv6() => Ipv4Addr::UNSPECIFIED.into(),
            _ => source,
        };
        let asking = std::net::UdpSocket::bind((source, 0))?;
        // What the route depends on besides the addresses.
        let mark = getsockopt(&self.0.socket, sockopt::Mark)?;
        if mark != 0 {
            setsockopt(&asking, sockopt::Mark, &mark)?;
        }
        let interface = getsockopt(&self.0.socket, sockopt::BindToDevice)?;
        if !interface.is_empty() {
            setsockopt(&asking, sockopt::BindToDevice, &interface)?;
        }
        asking.connect(to)?;
        let mtu = if to.is_ipv4() { ip_mtu(&asking)? } else { ipv6_mtu(&asking)? };
        Ok(mtu as usize)
    }

    /// Asks for larger buffers, beyond the system's limits (`net.core.rmem_max`, `wmem_max`) where
    /// the process may (`CAP_NET_ADMIN`). Returns what it got.
    ///
    /// # Errors
    /// The system's. That it grants less is none.
    pub fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<BufferSizes> {
        let Shared { socket, state, .. } = &*self.0;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let (receive_forced, send_forced) = {
            use nix::sys::socket::{setsockopt, sockopt};
            (
                setsockopt(socket, sockopt::RcvBufForce, &receive).is_ok(),
                setsockopt(socket, sockopt::SndBufForce, &send).is_ok(),
            )
        };
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let (receive_forced, send_forced) = (false, false);
        if !receive_forced {
            state.set_recv_buffer_size(socket.into(), receive)?;
        }
        if !send_forced {
            state.set_send_buffer_size(socket.into(), send)?;
        }
        self.buffer_sizes()
    }

    /// The sizes of the socket's buffers. Linux tells twice what was asked for.
    ///
    /// # Errors
    /// The system's.
    pub fn buffer_sizes(&self) -> io::Result<BufferSizes> {
        let Shared { socket, state, .. } = &*self.0;
        Ok(BufferSizes {
            receive: state.recv_buffer_size(socket.into())?,
            send: state.send_buffer_size(socket.into())?,
        })
    }

    /// Marks all that is sent (`SO_MARK`, WireGuard's `FwMark`), so that routing rules can keep a
    /// tunnel's datagrams out of the tunnel.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        Ok(nix::sys::socket::setsockopt(&self.0.socket, nix::sys::socket::sockopt::Mark, &mark)?)
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// The socket, for other options.
    pub fn as_std(&self) -> &std::net::UdpSocket {
        &self.0.socket
    }

    /// Switches runs of datagrams in one call on or off, for all senders of the socket. On after a
    /// refusal: it is tried again, and the next refusal is told of again.
    pub fn set_segmentation(&self, on: bool) {
        if on {
            self.0.told_too_long.store(false, Ordering::Relaxed);
            *self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.0.segmentation.store(on, Ordering::Relaxed);
    }

    /// What the kernel refused, so that runs are switched off.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn state(&self) -> &UdpSocketState {
        &self.0.state
    }

    pub(crate) fn socket(&self) -> UdpSockRef<'_> {
        (&self.0.socket).into()
    }

    /// Waits until there is something to receive.
    pub(crate) fn wait_readable(&self) -> io::Result<()> {
        self.wait(true)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn wait(&self, for_input: bool) -> io::Result<()> {
        use std::os::fd::AsFd;

        use nix::errno::Errno;
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

        let events = if for_input { PollFlags::POLLIN } else { PollFlags::POLLOUT };
        let mut fds = [PollFd::new(self.0.socket.as_fd(), events)];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Without a way to wait for a nonblocking socket in `std`, it looks again every millisecond.
    /// Programs that care use tokio, or an event loop of their own.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn wait(&self, for_input: bool) -> io::Result<()> {
        let mut byte = [0];
        loop {
            match self.0.socket.peek(&mut byte) {
                Err(error) if for_input && error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                _ if for_input => return Ok(()),
                _ => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return Ok(());
                }
            }
        }
    }
}

impl SendDatagrams for UdpSocket {
    #[inline]
    fn send(&self, transmit: &Transmit<'_>, scratch: &mut Vec<u8>) -> io::Result<()> {
        let &Transmit { destination, ecn, contents, segment_size, src_ip } = transmit;
        // A copy of a run costs what the kernel takes to look at as many slices: the bench `send`.
        let contents = match contents {
            [single] => single,
            several => {
                scratch.clear();
                several.iter().for_each(|slice| scratch.extend_from_slice(slice));
                scratch.as_slice()
            }
        };
        // A socket of IPv6 takes IPv4 addresses as mapped ones.
        let destination = match destination.ip() {
            IpAddr::V4(ip) if self.0.is_ipv6 => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), destination.port())
            }
            _ => destination,
        };
        self.0.state.try_send(
            self.socket(),
            &quinn_udp::Transmit { destination, ecn, contents, segment_size, src_ip },
        )
    }

    #[inline]
    fn max_segments(&self) -> usize {
        if self.0.segmentation.load(Ordering::Relaxed) { self.0.max_segments } else { 1 }
    }

    fn wait_writable(&self) -> io::Result<()> {
        self.wait(false)
    }

    /// Asks the system for the path MTU.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn fits(&self, destination: &Destination, length: usize) -> bool {
        let headers = if destination.addr.ip().to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 };
        self.path_mtu(destination).map_or(true, |mtu| length + headers <= mtu)
    }

    fn refuse(&self, refusal: &Refusal) -> bool {
        if refusal.cause == RefusalCause::TooLong {
            return !self.0.told_too_long.swap(true, Ordering::Relaxed);
        }
        let is_news = self.0.segmentation.swap(false, Ordering::Relaxed);
        if is_news {
            *self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal.clone());
        }
        is_news
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for UdpSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}
