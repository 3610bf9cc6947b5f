//! Frames as they are, sent and captured on an interface of a host (packet(7)).

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use superpacket::virtio::{ByteOrder, Format, Header as VnetHeader};
use superpacket_port::system::{Burst, Frames, PacketSocket, receive_message};

use crate::error::{Context, LabError};
use crate::link::Link;

/// The virtio header of packet sockets.
const FORMAT: Format = Format::Plain;
/// How many bytes a socket may have sent that were not received yet, as the kernel counts them:
/// with what each frame takes besides.
const BURST: usize = 64 << 20;
/// The longest that an interface with BIG TCP hands over, with its header.
const LARGEST_FRAME: usize = 1 << 20;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// How a [`RawSocket`] is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// Frames go and come with a virtio header (`PACKET_VNET_HDR`): super-packets and missing
    /// checksums are said. Without, a super-packet is captured as it lies in the kernel, and a
    /// checksum that a device was to fill in is wrong. Default: false.
    pub vnet_headers: bool,
    /// Captures frames for other MAC addresses too. Default: true.
    pub promiscuous: bool,
    /// Does not capture what this host sends. Default: true.
    pub ignore_outgoing: bool,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self { vnet_headers: false, promiscuous: true, ignore_outgoing: true }
    }
}

/// A VLAN tag that the kernel keeps beside the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Its EtherType, mostly 0x8100.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN ID.
    pub control: u16,
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// From the destination MAC address on, without the tag in `vlan`.
    pub bytes: Vec<u8>,
    /// The tag that stood in front of the EtherType.
    pub vlan: Option<VlanTag>,
    /// The virtio header, where asked for.
    pub vnet: Option<VnetHeader>,
}

impl CapturedFrame {
    /// The frame as it was on the wire, its tag put back.
    #[must_use]
    pub fn with_tag(&self) -> Vec<u8> {
        let Some(tag) = self.vlan else { return self.bytes.clone() };
        let (addresses, rest) = self.bytes.split_at(12.min(self.bytes.len()));
        [addresses, &tag.protocol.to_be_bytes(), &tag.control.to_be_bytes(), rest].concat()
    }
}

impl fmt::Debug for CapturedFrame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.bytes.len())?;
        if let Some(tag) = self.vlan {
            write!(formatter, ", tag {:04x}:{:04x}", tag.protocol, tag.control)?;
        }
        if let Some(vnet) = self.vnet {
            write!(formatter, ", {vnet:?}")?;
        }
        formatter.write_str(":")?;
        self.bytes.iter().take(64).try_for_each(|byte| write!(formatter, " {byte:02x}"))
    }
}

/// What was captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// The frames, in the order of their arrival.
    pub frames: Vec<CapturedFrame>,
    /// Frames that found no room in the socket's buffer since it was opened or last asked.
    pub dropped: u32,
}

/// A packet socket on one interface. It captures from the moment of its opening on.
#[derive(Debug)]
pub struct RawSocket {
    socket: PacketSocket,
    link: Link,
    vnet_headers: bool,
}

impl RawSocket {
    /// Opens a socket on an interface.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there is no such interface, or the kernel refuses.
    pub fn open(link: &Link, options: RawOptions) -> Result<Self, LabError> {
        let index = link.index()?;
        let what = || format!("{link}: packet socket");
        let socket = link.host().run(|| PacketSocket::open().context(what))?;
        // A large buffer, so that a burst is not lost; the limit of an unprivileged user is the
        // system's.
        socket.set_receive_buffer(BURST).context(what)?;
        // Likewise: a burst goes at once, also where its frames wait for the other end's poll.
        socket.set_send_buffer(BURST).context(what)?;
        socket.set_auxiliary_data(true).context(what)?;
        if options.ignore_outgoing {
            socket.set_ignore_outgoing(true).context(what)?;
        }
        if options.vnet_headers {
            socket.set_virtio_headers(true).context(what)?;
        }
        if options.promiscuous {
            socket.add_promiscuous(index).context(what)?;
        }
        socket.bind(index, Frames::All).context(what)?;
        Ok(Self { socket, link: link.clone(), vnet_headers: options.vnet_headers })
    }

    /// Sends frames in one burst (sendmmsg(2)), in order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] with the frame's place in the list, where one is refused.
    pub fn send<Frame: AsRef<[u8]>>(&self, frames: &[Frame]) -> Result<(), LabError> {
        if self.vnet_headers {
            let pairs: Vec<(VnetHeader, &[u8])> =
                frames.iter().map(|frame| (VnetHeader::default(), frame.as_ref())).collect();
            return self.send_with_headers(&pairs);
        }
        let messages: Vec<_> =
            frames.iter().map(|frame| vec![IoSlice::new(frame.as_ref())]).collect();
        self.send_messages(&messages)
    }

    /// Sends frames with what the device is to do to them, in one burst, in order.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] where the socket was opened without virtio headers;
    /// [`LabError::System`] with the frame's place in the list, where one is refused.
    pub fn send_with_headers<Frame: AsRef<[u8]>>(
        &self,
        frames: &[(VnetHeader, Frame)],
    ) -> Result<(), LabError> {
        if !self.vnet_headers {
            let what = format!("{}: frames with virtio headers", self.link);
            return Err(LabError::Invalid {
                what,
                reason: "the socket was opened without RawOptions::vnet_headers".into(),
            });
        }
        let headers: Vec<_> = frames.iter().map(|(header, _)| bytes(header)).collect();
        let parts = frames.iter().zip(&headers);
        let messages: Vec<_> = parts
            .map(|((_, frame), header)| vec![IoSlice::new(header), IoSlice::new(frame.as_ref())])
            .collect();
        self.send_messages(&messages)
    }

    /// Captures for `time`, or until `enough` frames have come.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the interface is gone.
    pub fn capture(&self, time: Duration, enough: usize) -> Result<Capture, LabError> {
        let deadline = Instant::now() + time;
        let mut buffer = vec![0; LARGEST_FRAME];
        let mut capture = Capture::default();
        while capture.frames.len() < enough {
            match self.receive(&mut buffer)? {
                Some(frame) => capture.frames.push(frame),
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.wait(left)?;
                }
            }
        }
        capture.dropped = self.dropped()?;
        Ok(capture)
    }

    /// The next frame, if one is there; `buffer` must have room for the longest, and its virtio
    /// header.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the interface is gone, or the frame is longer than `buffer`.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<CapturedFrame>, LabError> {
        let what = || format!("{}: capturing", self.link);
        let received =
            match receive_message(&self.socket, buffer, libc::SOL_PACKET, libc::PACKET_AUXDATA) {
                Ok(received) => received,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(LabError::system(what(), error)),
            };
        if received.truncated {
            return Err(LabError::system(
                format!("{}: a frame longer than {} bytes", what(), buffer.len()),
                io::ErrorKind::InvalidData,
            ));
        }
        let mut bytes = &buffer[..received.length];
        let mut vnet = None;
        if self.vnet_headers {
            let header = VnetHeader::read(bytes, FORMAT, ByteOrder::NATIVE);
            let header = header.map_err(|error| {
                LabError::system(what(), io::Error::new(io::ErrorKind::InvalidData, error))
            })?;
            (vnet, bytes) = (Some(header), &bytes[FORMAT.length()..]);
        }
        Ok(Some(CapturedFrame {
            bytes: bytes.to_vec(),
            vlan: received.control.and_then(vlan_tag),
            vnet,
        }))
    }

    /// Waits until a frame is there, or the time is over.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the kernel refuses.
    pub fn wait(&self, time: Duration) -> Result<(), LabError> {
        let timeout =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => {
                Err(LabError::system(format!("{}: waiting for frames", self.link), error))
            }
        }
    }

    /// Frames that found no room since this was last asked (`PACKET_STATISTICS` starts anew with
    /// each call).
    fn dropped(&self) -> Result<u32, LabError> {
        self.socket.take_drops().context(|| format!("{}: counters of the packet socket", self.link))
    }

    fn send_messages(&self, messages: &[Vec<IoSlice<'_>>]) -> Result<(), LabError> {
        let mut burst = Burst::new(messages);
        let mut sent = 0;
        while sent < messages.len() {
            match burst.send(&self.socket, sent) {
                Ok(count) => sent += count,
                // The device's queue is full: it drains by itself.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                    ) =>
                {
                    std::thread::yield_now()
                }
                Err(error) => {
                    return Err(LabError::system(
                        format!("{}: sending frame {sent} of {}", self.link, messages.len()),
                        error,
                    ));
                }
            }
        }
        Ok(())
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A virtio header as the kernel reads it.
fn bytes(header: &VnetHeader) -> [u8; FORMAT.length()] {
    let mut bytes = [0; FORMAT.length()];
    header.write(&mut bytes, FORMAT, ByteOrder::NATIVE).expect("there is room for it");
    bytes
}

/// `struct tpacket_auxdata`: status at 0, `tp_vlan_tci` at 16, `tp_vlan_tpid` at 18.
fn vlan_tag(auxdata: [u8; 32]) -> Option<VlanTag> {
    let status = u32::from_ne_bytes([auxdata[0], auxdata[1], auxdata[2], auxdata[3]]);
    let field = |at: usize| u16::from_ne_bytes([auxdata[at], auxdata[at + 1]]);
    let protocol = if status & TP_STATUS_VLAN_TPID_VALID != 0 { field(18) } else { 0x8100 };
    (status & TP_STATUS_VLAN_VALID != 0).then(|| VlanTag { protocol, control: field(16) })
}
