//! The socket, which a sender and a receiver share.

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

/// A UDP socket that sends and receives runs of datagrams. Clones refer to the same socket.
#[derive(Clone, Debug)]
pub struct UdpSocket(Arc<SocketState>);

#[derive(Debug)]
struct SocketState {
    socket: std::net::UdpSocket,
    is_ipv6: bool,
    state: UdpSocketState,
    /// Maximum number of datagrams in a run. The value in `quinn-udp` falls to 1 permanently after
    /// an error.
    max_segments: usize,
    /// Whether several datagrams may be sent with one system call.
    segmentation: AtomicBool,
    refusal: Mutex<Option<Refusal>>,
    /// Whether a run of datagrams that exceed the path MTU has been reported.
    reported_too_long: AtomicBool,
}

/// The treatment of datagrams that are longer than the path MTU.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fragmentation {
    /// The datagrams are sent in IP fragments. IPv4 datagrams have no don't-fragment bit, so
    /// routers may fragment them too. IPv6 datagrams are fragmented by this host, once it has
    /// learnt the path MTU. This is for tunnels, which cannot make their datagrams shorter.
    #[default]
    Allowed,
    /// The datagrams are lost, with all others of their run. If they exceed the MTU of the
    /// interface, they are refused with `EMSGSIZE`. IPv4 datagrams have the don't-fragment bit.
    /// This is for protocols that discover the path MTU themselves, such as QUIC.
    Forbidden,
}

/// Sizes of a socket's buffers in bytes, as the kernel counts them: including its own structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Size of the buffer for datagrams that the program has not received yet (`SO_RCVBUF`).
    pub receive: usize,
    /// Size of the buffer for datagrams that have not left the host (`SO_SNDBUF`).
    pub send: usize,
}

/// Buffer size that a new socket requests, in bytes: room for some 60 runs of 64 KB.
const BUFFER_SIZE: usize = 4 << 20;

impl UdpSocket {
    /// Binds a socket, with large buffers as far as the system allows.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let socket = Self::from_std(std::net::UdpSocket::bind(addr)?)?;
        // `buffer_sizes` returns the sizes that were granted.
        let _ = socket.set_buffer_sizes(BUFFER_SIZE, BUFFER_SIZE);
        Ok(socket)
    }

    /// Uses a bound socket. It is made nonblocking, and configured for `quinn-udp`: ECN bits,
    /// destination addresses and GRO are received. Timestamps are switched off. IP fragments are
    /// allowed on Linux and Android (`set_fragmentation` changes this), and forbidden elsewhere.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // `quinn-udp` 0.6 has room for 96 bytes of control messages. With a timestamp, a run's
        // stride and the destination address, none is left for the ECN bits of IPv4.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::ReceiveTimestampns,
            &false,
        )?;
        let max_segments = state.max_gso_segments();
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let socket = UdpSocket(Arc::new(SocketState {
            socket,
            is_ipv6,
            state,
            max_segments,
            segmentation: AtomicBool::new(true),
            refusal: Mutex::new(None),
            reported_too_long: AtomicBool::new(false),
        }));
        #[cfg(any(target_os = "linux", target_os = "android"))]
        socket.set_fragmentation(Fragmentation::default())?;
        Ok(socket)
    }

    /// Sets the treatment of datagrams that are longer than the path MTU, for everything sent from
    /// now on. The default is [`Fragmentation::Allowed`].
    ///
    /// # Errors
    /// Any error of the system.
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
        // This applies to IPv6 sockets too, which send to IPv4 addresses as mapped ones.
        set_ip_mtu_discover(socket, ipv4)?;
        if self.0.is_ipv6 {
            set_ipv6_mtu_discover(socket, ipv6)?;
            // IPv6 datagrams that exceed the interface's MTU are fragmented in spite of the other
            // option (`__ip6_append_data`), unless this is set.
            setsockopt(socket, sockopt::Ipv6DontFrag, &whole)?;
        }
        Ok(())
    }

    /// Returns the path MTU in bytes that this host knows. It is read from a second socket, since
    /// only a connected socket reports it.
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
        let probe = std::net::UdpSocket::bind((source, 0))?;
        // The route depends on these options too.
        let mark = getsockopt(&self.0.socket, sockopt::Mark)?;
        if mark != 0 {
            setsockopt(&probe, sockopt::Mark, &mark)?;
        }
        let interface = getsockopt(&self.0.socket, sockopt::BindToDevice)?;
        if !interface.is_empty() {
            setsockopt(&probe, sockopt::BindToDevice, &interface)?;
        }
        probe.connect(to)?;
        let mtu = if to.is_ipv4() { ip_mtu(&probe)? } else { ipv6_mtu(&probe)? };
        Ok(mtu as usize)
    }

    /// Requests these buffer sizes in bytes. They may exceed the system's limits
    /// (`net.core.rmem_max`, `wmem_max`) if the process has `CAP_NET_ADMIN`. Returns the sizes that
    /// were granted.
    ///
    /// # Errors
    /// Any error of the system. It is not an error if the granted sizes are smaller.
    pub fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<BufferSizes> {
        let SocketState { socket, state, .. } = &*self.0;
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

    /// Returns the sizes of the socket's buffers. Linux reports twice the requested size.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn buffer_sizes(&self) -> io::Result<BufferSizes> {
        let SocketState { socket, state, .. } = &*self.0;
        Ok(BufferSizes {
            receive: state.recv_buffer_size(socket.into())?,
            send: state.send_buffer_size(socket.into())?,
        })
    }

    /// Sets the firewall mark of all datagrams sent (`SO_MARK`, WireGuard's `FwMark`), so that
    /// routing rules can keep a tunnel's datagrams out of the tunnel.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        Ok(nix::sys::socket::setsockopt(&self.0.socket, nix::sys::socket::sockopt::Mark, &mark)?)
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_addr()
    }

    /// Returns the standard library's socket, to set other options.
    pub fn as_std(&self) -> &std::net::UdpSocket {
        &self.0.socket
    }

    /// Switches the sending of runs on or off, for all senders of the socket. If it is switched on
    /// after a refusal, runs are tried again, and the next refusal is reported again.
    pub fn set_segmentation(&self, on: bool) {
        if on {
            self.0.reported_too_long.store(false, Ordering::Relaxed);
            *self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.0.segmentation.store(on, Ordering::Relaxed);
    }

    /// Returns the refusal for which the sending of runs is switched off.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn state(&self) -> &UdpSocketState {
        &self.0.state
    }

    pub(crate) fn socket(&self) -> UdpSockRef<'_> {
        (&self.0.socket).into()
    }

    /// Waits until a datagram can be received.
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

    /// Polls every millisecond, since `std` cannot wait for a nonblocking socket. Use tokio or an
    /// event loop for better performance.
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
        // Copying a run costs no more than the kernel's processing of as many slices (bench
        // `send`).
        let contents = match contents {
            [single] => single,
            several => {
                scratch.clear();
                several.iter().for_each(|slice| scratch.extend_from_slice(slice));
                scratch.as_slice()
            }
        };
        // IPv6 sockets need IPv4 addresses as mapped ones.
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

    /// Returns whether the length fits the path MTU that the system knows; `true` if it knows none.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn fits(&self, destination: &Destination, length: usize) -> bool {
        let headers = if destination.addr.ip().to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 };
        self.path_mtu(destination).map_or(true, |mtu| length + headers <= mtu)
    }

    fn refuse(&self, refusal: &Refusal) -> bool {
        if refusal.cause == RefusalCause::TooLong {
            return !self.0.reported_too_long.swap(true, Ordering::Relaxed);
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
