//! Raw frames, sent and captured on an interface of a host (packet(7)).

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

/// Format of the virtio header on packet sockets.
const FORMAT: Format = Format::Plain;
/// Size of a socket's send and receive buffers, in bytes as the kernel counts them, including its
/// overhead per frame. It is large enough for a burst.
const BURST: usize = 64 << 20;
/// Longest frame that an interface with BIG TCP delivers, with its virtio header.
const LARGEST_FRAME: usize = 1 << 20;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// Options of a [`RawSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// Frames are sent and received with a virtio header (`PACKET_VNET_HDR`), which describes
    /// super-packets and partial checksums. Without it, a captured frame shows neither: its
    /// checksum may be unfinished. Default: false.
    pub vnet_headers: bool,
    /// Capture frames for other MAC addresses too. Default: true.
    pub promiscuous: bool,
    /// Do not capture frames that this host sends. Default: true.
    pub ignore_outgoing: bool,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self { vnet_headers: false, promiscuous: true, ignore_outgoing: true }
    }
}

/// A VLAN tag that the kernel delivers separately from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// EtherType of the tag, usually 0x8100.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN ID (TCI).
    pub control: u16,
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// The frame from the destination MAC address on, without the tag in `vlan`.
    pub bytes: Vec<u8>,
    /// The tag that was removed from the frame.
    pub vlan: Option<VlanTag>,
    /// The frame's virtio header, if the socket was opened with virtio headers.
    pub vnet: Option<VnetHeader>,
}

impl CapturedFrame {
    /// Returns the frame as it was on the wire, with its tag.
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

/// The result of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// The frames, in order of arrival.
    pub frames: Vec<CapturedFrame>,
    /// Frames dropped because the socket's buffer was full, since it was opened or last read.
    pub dropped: u32,
}

/// A packet socket on one interface. It starts to capture when it is created.
#[derive(Debug)]
pub struct RawSocket {
    socket: PacketSocket,
    link: Link,
    vnet_headers: bool,
}

impl RawSocket {
    /// Opens a packet socket on an interface.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist or the kernel refuses.
    pub fn open(link: &Link, options: RawOptions) -> Result<Self, LabError> {
        let index = link.index()?;
        let what = || format!("{link}: packet socket");
        let socket = link.host().run(|| PacketSocket::open().context(what))?;
        // Large enough for a burst; an unprivileged user gets the system's limit.
        socket.set_receive_buffer(BURST).context(what)?;
        // Also for a burst: its frames may wait until the other end polls.
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

    /// Sends frames in order, in one burst (sendmmsg(2)).
    ///
    /// # Errors
    ///
    /// [`LabError::System`] with the index of the refused frame.
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

    /// Sends frames in order, in one burst; each header gives the checksum and segmentation work
    /// left to the device.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] if the socket was opened without virtio headers; [`LabError::System`]
    /// with the index of the refused frame.
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
        let headers: Vec<_> = frames.iter().map(|(header, _)| encode_header(header)).collect();
        let parts = frames.iter().zip(&headers);
        let messages: Vec<_> = parts
            .map(|((_, frame), header)| vec![IoSlice::new(header), IoSlice::new(frame.as_ref())])
            .collect();
        self.send_messages(&messages)
    }

    /// Captures for `time`, or until `enough` frames have arrived.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface is gone.
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

    /// Receives the next frame without waiting; `None` if there is none. `buffer` must hold the
    /// longest frame and its virtio header.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface is gone or the frame is longer than `buffer`.
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

    /// Waits until a frame arrives or the time is over.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if poll(2) fails.
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

    /// Returns the number of frames dropped since the last call (the kernel resets
    /// `PACKET_STATISTICS` with each read).
    fn dropped(&self) -> Result<u32, LabError> {
        self.socket.take_drops().context(|| format!("{}: counters of the packet socket", self.link))
    }

    fn send_messages(&self, messages: &[Vec<IoSlice<'_>>]) -> Result<(), LabError> {
        let mut burst = Burst::new(messages);
        let mut sent = 0;
        while sent < messages.len() {
            match burst.send(&self.socket, sent) {
                Ok(count) => sent += count,
                // The device's queue is full; it drains without our help.
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

/// Encodes a virtio header for the kernel.
fn encode_header(header: &VnetHeader) -> [u8; FORMAT.length()] {
    let mut bytes = [0; FORMAT.length()];
    header.write(&mut bytes, FORMAT, ByteOrder::NATIVE).expect("there is room for it");
    bytes
}

/// Parses `struct tpacket_auxdata`: status at 0, `tp_vlan_tci` at 16, `tp_vlan_tpid` at 18.
fn vlan_tag(auxdata: [u8; 32]) -> Option<VlanTag> {
    let status = u32::from_ne_bytes([auxdata[0], auxdata[1], auxdata[2], auxdata[3]]);
    let field = |at: usize| u16::from_ne_bytes([auxdata[at], auxdata[at + 1]]);
    let protocol = if status & TP_STATUS_VLAN_TPID_VALID != 0 { field(18) } else { 0x8100 };
    (status & TP_STATUS_VLAN_VALID != 0).then(|| VlanTag { protocol, control: field(16) })
}
