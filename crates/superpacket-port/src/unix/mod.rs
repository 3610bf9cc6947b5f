//! UNIX sockets, which virtual machines use as network cables: QEMU, passt, libkrun, vfkit and
//! others.
//!
//! `unix:PATH` creates the socket and waits for the peer; `unix:PATH?connect=on` connects to it. A
//! peer that leaves and returns is the same port: meanwhile the link is
//! [down](super::LinkState::Down). One peer is connected at a time; others are refused.
//!
//! | option | | default |
//! |---|---|---|
//! | `type=stream` | `stream`: the length before each frame, in 4 bytes, big-endian; `datagram`: one frame per datagram | `stream` |
//! | `connect=on` | for streams: connect to the socket, again and again until the peer is there; `off`: create it | `off` |
//! | `peer=PATH` | for datagrams: the socket to send to | the first sender |
//! | `header=N` | bytes of the virtio header before each frame: `none`, `10`, `12`; little-endian | `none` |
//! | `mtu=N` | the peer's longest IP packet in bytes | 1500 |
//! | `offload=LIST` | what the peer accepts: `on`, `off`, or some of `csum,tso,uso`; without a header only `tso` | `csum,tso` with a header, else `off` |
//! | `mode=0600` | access bits of the socket's file, in octal digits | `0600` |
//!
//! **What the peer sends.** A virtio header says what the peer left undone, as for TAP devices.
//! Without a header, the port recognizes it (libkrun with offloads): TCP packets that are longer
//! than `mtu` are super-packets with segments of that size, whose checksums are computed again, and
//! a checksum that is the sum of the pseudo-header is a partial one.
//!
//! **What the peer gets.** Without a header and with `offload=off`, frames of at most `mtu` with
//! complete checksums. With `offload=on`, TCP super-packets with complete checksums.
//!
//! **Lengths.** A frame has 14 to 65,535 bytes. Another length ends a stream's connection, and an
//! unusable datagram or virtio header is left out; both count as `rx_errors`. Datagrams without
//! bytes are never sent.
//!
//! **Full sockets.** Up to 1 MiB of frames wait for room in the socket. Beyond that the port is
//! full. Frames that wait when the peer leaves are lost.
//!
//! **The file.** A socket's file that no process uses any more is replaced. The port removes its
//! own file when it is closed.
//!
//! Packets are received into the port's memory, 6.3 MiB, of which unused parts occupy none.

mod datagram;
mod frame;
mod input;
mod options;
mod output;
mod readiness;
mod receive;
mod send;
mod shared;
pub(crate) mod socket_file;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use rustix::net::{SocketAddrUnix, SocketType, listen};
use superpacket::segment::GsoSupport;

use self::datagram::{DatagramLink, DatagramReceiver};
use self::frame::{FrameFormat, MAX_FRAME};
use self::options::{PeerOffloads, SocketKind, UnixOptions};
use self::output::Connection;
use self::readiness::Readiness;
use self::receive::{Source, StreamReceiver};
use self::send::{DatagramTransmitter, StreamTransmitter};
use self::shared::UnixShared;
use self::socket_file::SocketFile;
use super::{
    Capabilities, LinkState, MAX_SLICES, Port, PortCounters, PortError, PortSpec, PortState,
    Receive, SpecError, Transmit,
};
use crate::features::{Feature, FeatureSet};
use crate::slots::PacketSlots;

/// Number of clients that may wait to be accepted.
const BACKLOG: i32 = 16;

/// Length of an Ethernet header with two VLAN tags in bytes.
const LINK_HEADER: usize = 14 + 2 * 4;

/// A port on a UNIX socket.
#[derive(Debug)]
pub(super) struct UnixPort {
    shared: Arc<UnixShared>,
    offloads: PeerOffloads,
    /// For datagrams: the socket and its peer.
    link: Option<Arc<DatagramLink>>,
    /// The receiving end, until it is handed out.
    receiver: Option<Box<dyn Receive>>,
    /// The file of the socket, if this port created it.
    _file: Option<SocketFile>,
}

impl UnixPort {
    /// Checks the options of a port string.
    pub(super) fn check(spec: &PortSpec) -> Result<(), SpecError> {
        UnixOptions::read(spec).map(drop)
    }

    /// Opens the socket that a port string of kind `unix` names. The peer need not be there yet.
    pub(super) fn open(spec: &PortSpec) -> Result<Self, PortError> {
        let options = UnixOptions::read(spec)?;
        let (name, path) = (spec.name(), Path::new(spec.device()));
        let system = |action| move |error: io::Error| PortError::system(name, action, error);
        let slots = PacketSlots::try_new(1).ok_or_else(|| {
            let says = format!("there are no {} MiB", PacketSlots::bytes(1) >> 20);
            let error = io::Error::new(io::ErrorKind::OutOfMemory, says);
            PortError::system(name, "take memory for received frames", error)
        })?;
        let readiness = Readiness::new().map_err(system("create an epoll (epoll_create1)"))?;
        let format = FrameFormat { header: options.header, mtu: options.mtu };
        let shared = Arc::new(UnixShared::new(name, format));
        let (file, link, receiver): (_, _, Box<dyn Receive>) = match options.kind {
            SocketKind::Stream => {
                let (source, file) = source(name, path, &options)?;
                let mut readiness = readiness;
                if let Source::Listen(listener) = &source {
                    readiness.watch(listener).map_err(system("watch the socket (epoll_ctl)"))?;
                }
                let mut receiver =
                    StreamReceiver::new(Arc::clone(&shared), source, readiness, slots);
                if receiver.join()?.is_none() && options.connect {
                    tracing::info!(port = name, "no peer listens yet: connecting is retried");
                }
                (file, None, Box::new(receiver))
            }
            SocketKind::Datagram => {
                let (socket, file) = SocketFile::bind(name, path, SocketType::DGRAM, options.mode)?;
                let mut readiness = readiness;
                readiness.watch(&socket).map_err(system("watch the socket (epoll_ctl)"))?;
                let connection =
                    Connection::new(socket, SocketKind::Datagram, readiness.room_watch());
                let link = DatagramLink::new(
                    Arc::clone(&shared),
                    Arc::new(connection),
                    options.peer.as_deref(),
                )?;
                link.find_peer();
                let link = Arc::new(link);
                let receiver =
                    DatagramReceiver::new(Arc::clone(&shared), Arc::clone(&link), readiness, slots);
                (Some(file), Some(link), Box::new(receiver))
            }
        };
        Ok(UnixPort {
            shared,
            offloads: options.offloads,
            link,
            receiver: Some(receiver),
            _file: file,
        })
    }
}

/// Returns the way in which a stream port gets its connections, and the socket's file if the port
/// created one.
fn source(
    name: &str,
    path: &Path,
    options: &UnixOptions,
) -> Result<(Source, Option<SocketFile>), PortError> {
    if options.connect {
        let address = SocketAddrUnix::new(path)
            .map_err(|error| PortError::system(name, "use the path of the socket", error))?;
        return Ok((Source::Connect(address), None));
    }
    let (socket, file): (OwnedFd, _) =
        SocketFile::bind(name, path, SocketType::STREAM, options.mode)?;
    listen(&socket, BACKLOG)
        .map_err(|error| PortError::system(name, "listen at the socket (listen)", error))?;
    Ok((Source::Listen(UnixListener::from(socket)), Some(file)))
}

impl Port for UnixPort {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn capabilities(&self) -> Capabilities {
        let PeerOffloads { checksums, tso, uso } = self.offloads;
        // Without a header, the port itself completes the checksum of a super-packet.
        let features = FeatureSet::all()
            .without(Feature::ReceiveHashing)
            .set(Feature::TxChecksumming, checksums || tso)
            .set(Feature::TcpSegmentationOffload, tso)
            .set(Feature::TxUdpSegmentation, uso);
        let longest = (MAX_FRAME - LINK_HEADER) as u32;
        let mut gso = if tso || uso { GsoSupport::LINUX } else { GsoSupport::NONE };
        (gso.tcp, gso.udp, gso.udp_tunnels) = (tso, uso, false);
        gso.max_ipv4_length = gso.max_ipv4_length.min(longest);
        gso.max_ipv6_length = gso.max_ipv6_length.min(longest);
        gso.max_segments = gso.max_segments.min(u32::from(u16::MAX));
        Capabilities {
            features,
            gso,
            // One slice has the length and the virtio header.
            max_slices: MAX_SLICES - 1,
        }
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        self.receiver.take().into_iter().collect()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        let shared = Arc::clone(&self.shared);
        Ok(match &self.link {
            None => Box::new(StreamTransmitter::new(shared)),
            Some(link) => Box::new(DatagramTransmitter::new(shared, Arc::clone(link))),
        })
    }

    fn state(&mut self) -> PortState {
        if let Some(link) = &self.link {
            link.find_peer();
        }
        let is_up = self.shared.connection().is_some();
        let link = if is_up { LinkState::Up } else { LinkState::Down };
        PortState { link, mtu: self.shared.format.mtu }
    }

    fn counters(&mut self) -> PortCounters {
        self.shared.counters.read(0)
    }
}
