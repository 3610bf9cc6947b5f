//! The socket of a vhost-user front end (the virtual machine's side), and its messages.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Numbers of the front end's requests.
#[expect(missing_docs, reason = "these are the names of the vhost-user specification")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// The version of the vhost-user protocol, 1, in the flags of a message.
const VERSION: u32 = 1;
/// The flag of a message by which the front end asks for a reply to a request that otherwise has
/// none.
const NEED_REPLY: u32 = 8;

/// A reply of the device to a request.
#[derive(Debug)]
pub struct Reply {
    /// The body of the message, after its header.
    pub body: Vec<u8>,
    /// The file descriptors that the device sent with the reply.
    pub files: Vec<OwnedFd>,
}

impl Reply {
    /// Returns the first 8 bytes as a number.
    pub fn number(&self) -> u64 {
        u64::from_ne_bytes(self.body[..8].try_into().expect("8 bytes"))
    }
}

/// The socket of a front end.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
}

impl FrontEnd {
    /// Creates a front end that uses a connected socket. A reply that does not come within ten
    /// seconds is an error.
    pub fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        FrontEnd { socket }
    }

    /// Connects to the socket of a device.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn connect(path: &std::path::Path) -> io::Result<Self> {
        Ok(FrontEnd::new(UnixStream::connect(path)?))
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends bytes and file descriptors to the device, even if they are no valid message.
    ///
    /// # Errors
    /// The device has closed the connection.
    pub fn send_bytes(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)), "there is room");
        }
        let flags = SendFlags::NOSIGNAL;
        let sent =
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        assert_eq!(sent, bytes.len(), "the socket has room");
        Ok(())
    }

    /// Sends a request that has no answer.
    ///
    /// # Errors
    /// The device has closed the connection.
    pub fn send(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&message(request, VERSION, body), files)
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// The device has closed the connection, or does not answer.
    pub fn ask(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<Reply> {
        self.send(request, body, files)?;
        self.reply()
    }

    /// Sends a request with the flag `NEED_REPLY`, and waits until the device reports success.
    ///
    /// # Errors
    /// The device has closed the connection, does not answer, or refuses the request.
    pub fn demand(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&message(request, VERSION | NEED_REPLY, body), files)?;
        match self.reply()?.number() {
            0 => Ok(()),
            _ => Err(io::Error::other("refused")),
        }
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// The device has closed the connection, or does not answer.
    pub fn reply(&self) -> io::Result<Reply> {
        let mut files = Vec::new();
        let header = self.read(12, &mut files)?;
        let length = u32::from_ne_bytes(header[8..12].try_into().expect("4 bytes"));
        let body = self.read(length as usize, &mut files)?;
        Ok(Reply { body, files })
    }

    fn read(&self, length: usize, files: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut bytes[filled..])],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += received.bytes;
        }
        Ok(bytes)
    }

    /// Waits until the device closes the connection; returns `false` if it does not within ten
    /// seconds.
    pub fn is_closed(&self) -> bool {
        let mut byte = [0];
        loop {
            match rustix::net::recv(&self.socket, &mut byte, RecvFlags::empty()) {
                Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => {
                    return true;
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Returns the bytes of a message.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, flags, body.len() as u32];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(body);
    bytes
}
