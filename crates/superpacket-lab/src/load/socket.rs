//! Connected TCP sockets between two hosts, created in their namespaces and usable from any thread.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, connect, socket_with, sockopt,
};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::load::settings::{Route, TcpOptions};

/// Time limit for connecting; allows for three lost SYNs.
const CONNECT: Duration = Duration::from_secs(10);

/// A TCP connection's two sockets, non-blocking.
pub(crate) struct ConnectedSockets {
    pub(crate) client: OwnedFd,
    pub(crate) server: OwnedFd,
}

/// Opens `count` connections, one after the other.
pub(crate) fn connections(
    route: &Route<'_>,
    count: usize,
    options: &TcpOptions,
) -> Result<Vec<ConnectedSockets>, LabError> {
    let (address, server) = (route.address, route.server);
    let listener = server.run(|| -> Result<TcpListener, LabError> {
        let listener = TcpListener::bind((address, 0))
            .context(|| format!("host {}: listening at {address}", server.name()))?;
        apply(&listener, options)?;
        Ok(listener)
    })?;
    let target =
        listener.local_addr().context(|| format!("host {}: the listener's port", server.name()))?;
    route.client.run(|| {
        let connect = |number: usize| {
            let what = || {
                format!("host {}: connection {number} of {count} to {target}", route.client.name())
            };
            let client = connect_to(target, options, &what)?;
            wait_for(&listener, PollFlags::IN, CONNECT, &|| {
                format!("{}: the server did not accept it", what())
            })?;
            let server = accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
                .context(what)?;
            // Unlike the other options, this one is not inherited from the listener.
            sockopt::set_tcp_nodelay(&server, options.no_delay).context(what)?;
            Ok(ConnectedSockets { client, server })
        };
        (1..=count).map(connect).collect()
    })
}

/// Opens `count` connections to a server outside the lab, one after the other.
pub(crate) fn clients(
    host: &Host,
    target: SocketAddr,
    count: usize,
    options: &TcpOptions,
) -> Result<Vec<OwnedFd>, LabError> {
    host.run(|| {
        let connect = |number| {
            connect_to(target, options, &|| {
                format!("host {}: connection {number} of {count} to {target}", host.name())
            })
        };
        (1..=count).map(connect).collect()
    })
}

fn connect_to(
    target: SocketAddr,
    options: &TcpOptions,
    what: &impl Fn() -> String,
) -> Result<OwnedFd, LabError> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).context(what)?;
    apply(&socket, options)?;
    match connect(&socket, &target) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait_for(&socket, PollFlags::OUT, CONNECT, what)?;
            sockopt::socket_error(&socket).context(what)?.context(what)?;
        }
        Err(error) => return Err(LabError::system(what(), error)),
    }
    Ok(socket)
}

/// Sets the socket options. This precedes connecting, because the SYN announces some of them.
fn apply(socket: impl AsFd, options: &TcpOptions) -> Result<(), LabError> {
    let socket = socket.as_fd();
    if !options.congestion_control.is_empty() {
        sockopt::set_tcp_congestion(socket, &options.congestion_control).map_err(|error| {
            match error {
                Errno::NOENT => LabError::Unsupported {
                    what: format!("congestion control {}", options.congestion_control),
                    reason:
                        "this kernel does not have it (net.ipv4.tcp_available_congestion_control)"
                            .into(),
                },
                error => LabError::system(
                    format!("congestion control {}", options.congestion_control),
                    error,
                ),
            }
        })?;
    }
    if let Some(size) = options.maximum_segment_size {
        set_maximum_segment_size(socket, size)?;
    }
    if let Some(bytes) = options.send_buffer {
        sockopt::set_socket_send_buffer_size(socket, bytes)
            .context(|| format!("send buffer of {bytes} bytes"))?;
    }
    if let Some(bytes) = options.receive_buffer {
        sockopt::set_socket_recv_buffer_size(socket, bytes)
            .context(|| format!("receive buffer of {bytes} bytes"))?;
    }
    sockopt::set_tcp_nodelay(socket, options.no_delay).context(|| "TCP_NODELAY".into())
}

fn set_maximum_segment_size(socket: impl AsFd, size: u16) -> Result<(), LabError> {
    superpacket_port::system::set_tcp_max_segment(socket, size)
        .context(|| format!("maximum segment size of {size} bytes"))
}

/// Waits until `socket` is ready; `what` describes the operation in errors.
fn wait_for(
    socket: impl AsFd,
    flags: PollFlags,
    limit: Duration,
    what: &impl Fn() -> String,
) -> Result<(), LabError> {
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
    let socket = socket.as_fd();
    loop {
        match poll(&mut [PollFd::new(&socket, flags)], Some(&timeout)) {
            Ok(0) => {
                return Err(LabError::system(
                    format!("{}, within {} s", what(), limit.as_secs()),
                    std::io::ErrorKind::TimedOut,
                ));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(LabError::system(what(), error)),
        }
    }
}
