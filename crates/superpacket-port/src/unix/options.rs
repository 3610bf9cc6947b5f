//! The options of UNIX socket ports.

use std::path::PathBuf;

use rustix::fs::Mode;
use superpacket::virtio::Format;

use crate::{PortSpec, SpecError, SpecOptions};

/// The kind of socket that carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    /// A stream socket, with the length before each frame.
    Stream,
    /// A datagram socket, with one frame per datagram.
    Datagram,
}

/// The super-packets and checksums that the peer accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerOffloads {
    /// Whether the peer completes partial checksums. This needs a virtio header, which describes
    /// them.
    pub(super) checksums: bool,
    /// Whether the peer accepts TCP super-packets.
    pub(super) tso: bool,
    /// Whether the peer accepts UDP super-packets. This needs a virtio header, which gives the size
    /// of the segments.
    pub(super) uso: bool,
}

/// The parsed options of a port string.
#[derive(Debug)]
pub(super) struct UnixOptions {
    pub(super) kind: SocketKind,
    /// Whether the port connects to the socket; else it creates the socket.
    pub(super) connect: bool,
    /// The path of the socket to which datagrams are sent; `None` for the address of the first
    /// sender.
    pub(super) peer: Option<PathBuf>,
    /// The format of the virtio header before each frame; `None` for no header.
    pub(super) header: Option<Format>,
    /// The longest IP packet of the peer in bytes.
    pub(super) mtu: u32,
    pub(super) offloads: PeerOffloads,
    /// The access bits of the socket's file.
    pub(super) mode: Mode,
}

/// The accepted MTUs: from the minimum MTU of IPv4 (RFC 791) to the maximum length of an IP packet.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;

impl UnixOptions {
    pub(super) fn read(spec: &PortSpec) -> Result<Self, SpecError> {
        let options = spec.options();
        options.only(&["type", "connect", "peer", "header", "mtu", "offload", "mode"])?;
        let kinds = [("stream", SocketKind::Stream), ("datagram", SocketKind::Datagram)];
        let kind = options.choice("type", SocketKind::Stream, &kinds)?;
        let connect = options.switch("connect", false)?;
        let peer = options.get("peer").map(PathBuf::from);
        match kind {
            SocketKind::Stream if peer.is_some() => {
                return Err(options.wrong("peer", "is for type=datagram"));
            }
            SocketKind::Datagram if connect => {
                return Err(options.wrong(
                    "connect",
                    "is for type=stream: with type=datagram, peer=PATH names the socket to send to",
                ));
            }
            _ => {}
        }
        if peer.as_deref().is_some_and(|peer| peer.as_os_str().is_empty()) {
            return Err(options.wrong("peer", "takes the path of a socket"));
        }
        let formats = [("none", None), ("10", Some(Format::Plain)), ("12", Some(Format::Buffers))];
        let header = options.choice("header", None, &formats)?;
        let mtu = options.value("mtu", "takes a number of bytes from 68 to 65535", 1500)?;
        if !MTU.contains(&mtu) {
            return Err(options.wrong("mtu", "takes a number of bytes from 68 to 65535"));
        }
        let offloads = PeerOffloads::read(options, header.is_some())?;
        Ok(UnixOptions { kind, connect, peer, header, mtu, offloads, mode: mode(options)? })
    }
}

impl PeerOffloads {
    fn read(options: &SpecOptions, has_header: bool) -> Result<Self, SpecError> {
        let default = if has_header { "csum,tso" } else { "off" };
        let list = match options.get("offload").unwrap_or(default) {
            "on" if has_header => "csum,tso,uso",
            "on" => "tso",
            list => list,
        };
        let mut offloads = PeerOffloads::default();
        for word in list.split(',') {
            match word {
                "off" if list == "off" => {}
                "tso" => offloads.tso = true,
                "csum" if has_header => offloads.checksums = true,
                "uso" if has_header => offloads.uso = true,
                "csum" | "uso" => {
                    return Err(options.wrong("offload", "needs header=10 or header=12"));
                }
                _ => return Err(options.wrong("offload", "takes on, off, or some of csum,tso,uso")),
            }
        }
        if has_header && (offloads.tso || offloads.uso) && !offloads.checksums {
            return Err(options.wrong("offload", "has super-packets without csum"));
        }
        Ok(offloads)
    }
}

/// Reads the access bits of the socket's file, in octal digits as `chmod` takes them.
fn mode(options: &SpecOptions) -> Result<Mode, SpecError> {
    let digits = options.get("mode").unwrap_or("0600");
    match u32::from_str_radix(digits, 8) {
        Ok(bits @ 0..=0o777) => Ok(Mode::from_bits_truncate(bits as _)),
        _ => Err(options.wrong("mode", "takes access bits in octal digits: 0600, 0660")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<UnixOptions, SpecError> {
        UnixOptions::read(&text.parse::<PortSpec>().expect("well formed"))
    }

    #[test]
    fn a_path_alone_is_a_stream_server_without_header() {
        let options = read("unix:/run/vm0.sock").expect("no option is needed");
        assert_eq!((options.kind, options.connect), (SocketKind::Stream, false));
        assert_eq!((options.peer, options.header, options.mtu), (None, None, 1500));
        assert_eq!(options.offloads, PeerOffloads::default());
        assert_eq!(options.mode, Mode::RUSR | Mode::WUSR);
    }

    #[test]
    fn a_peer_with_a_header_accepts_tcp_super_packets_unless_told_otherwise() {
        let offloads = |text: &str| {
            let PeerOffloads { checksums, tso, uso } = read(text).expect(text).offloads;
            [checksums, tso, uso]
        };
        assert_eq!(offloads("unix:s?header=12"), [true, true, false]);
        assert_eq!(offloads("unix:s?header=10&offload=off"), [false; 3]);
        assert_eq!(offloads("unix:s?header=12&offload=on"), [true; 3]);
        assert_eq!(offloads("unix:s?header=12&offload=csum"), [true, false, false]);
        assert_eq!(offloads("unix:s?offload=on"), [false, true, false]);
        assert_eq!(offloads("unix:s?offload=off"), [false; 3]);
    }

    #[test]
    fn values_are_checked_and_named() {
        let options =
            read("unix:s?type=datagram&peer=/run/q.sock&mtu=9000&mode=0660").expect("all known");
        assert_eq!((options.kind, options.mtu), (SocketKind::Datagram, 9000));
        assert_eq!(options.peer, Some(PathBuf::from("/run/q.sock")));
        assert_eq!(options.mode.as_raw_mode(), 0o660);
        for (text, says) in [
            ("unix:s?type=dgram", "stream or datagram"),
            ("unix:s?connect=yes", "on or off"),
            ("unix:s?type=datagram&connect=on", "peer=PATH names the socket to send to"),
            ("unix:s?peer=/run/q.sock", "is for type=datagram"),
            ("unix:s?type=datagram&peer=", "takes the path of a socket"),
            ("unix:s?header=24", "none, 10 or 12"),
            ("unix:s?mtu=67", "from 68 to 65535"),
            ("unix:s?mtu=70000", "from 68 to 65535"),
            ("unix:s?offload=uso", "needs header=10 or header=12"),
            ("unix:s?offload=lro", "some of csum,tso,uso"),
            ("unix:s?offload=", "some of csum,tso,uso"),
            ("unix:s?header=12&offload=tso", "without csum"),
            ("unix:s?mode=1777", "octal"),
            ("unix:s?mode=rw", "octal"),
            ("unix:s?queues=2", "type, connect, peer, header, mtu, offload, mode"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
