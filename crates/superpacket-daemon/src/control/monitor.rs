//! The client's side of a monitor, which receives copies of the bridge's packets: reads a pcapng
//! stream block by block.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::client_error::ClientError;

/// Maximum number of bytes read per system call.
const READ: usize = 256 << 10;

/// Maximum length of a block in bytes, far more than the longest packet. A longer one is an error.
const MOST: usize = 1 << 24;

/// Block type of interface statistics (draft-ietf-opsawg-pcapng, section 4).
const STATISTICS: u32 = 5;
/// Block type of a packet: the Enhanced Packet Block.
const PACKET: u32 = 6;

/// Option of interface statistics with the number of dropped packets (`isb_ifdrop`).
const DROPPED: u16 = 5;

/// The packets that a monitor's stream has contained so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorCounts {
    /// Number of packets read.
    pub packets: u64,
    /// Number of packets that the bridge dropped because this monitor did not read them in time.
    /// The bridge sends it at the end of the stream.
    pub dropped: u64,
    /// Whether the stream is complete: its last block, the statistics, has been read.
    pub is_whole: bool,
}

/// The stream of a monitor's packet copies: a pcapng section in native byte order, since the bridge
/// runs on the same machine.
#[derive(Debug)]
pub struct MonitorStream {
    path: PathBuf,
    socket: UnixStream,
    /// The received bytes: `lent` bytes of complete blocks, followed by the incomplete next block.
    bytes: Vec<u8>,
    /// Length of the complete blocks that the last [`read`](Self::read) returned.
    lent: usize,
    counts: MonitorCounts,
}

impl MonitorStream {
    pub(super) fn new(
        path: PathBuf,
        socket: UnixStream,
        first_bytes: Vec<u8>,
    ) -> Result<Self, ClientError> {
        // There may be no packet for a long time.
        socket
            .set_read_timeout(None)
            .map_err(|source| ClientError::Io { path: path.clone(), source })?;
        Ok(MonitorStream {
            path,
            socket,
            bytes: first_bytes,
            lent: 0,
            counts: MonitorCounts::default(),
        })
    }

    /// Waits for more of the stream, and returns its complete blocks; `None` at the end of the
    /// stream. The slice is empty if only a part of a block has arrived.
    ///
    /// # Errors
    /// [`ClientError::Io`] if the connection fails or ends within a block;
    /// [`ClientError::Malformed`] if the stream is not pcapng.
    pub fn read(&mut self) -> Result<Option<&[u8]>, ClientError> {
        self.bytes.drain(..std::mem::take(&mut self.lent));
        // Blocks that arrived together with the answer.
        self.find_blocks()?;
        if self.lent != 0 {
            return Ok(Some(&self.bytes[..self.lent]));
        }
        let held = self.bytes.len();
        self.bytes.resize(held + READ, 0);
        let read = loop {
            match self.socket.read(&mut self.bytes[held..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(held + *read.as_ref().unwrap_or(&0));
        let read = read.map_err(|source| self.failed(source))?;
        self.find_blocks()?;
        if read == 0 {
            if self.bytes.is_empty() {
                return Ok(None);
            }
            let rest = format!("the stream ends {} bytes into a block", self.bytes.len());
            return Err(self.failed(io::Error::new(io::ErrorKind::UnexpectedEof, rest)));
        }
        Ok(Some(&self.bytes[..self.lent]))
    }

    /// Extends `lent` by the complete blocks in `bytes`, and counts them.
    fn find_blocks(&mut self) -> Result<(), ClientError> {
        while let Some(length) = self.block_at(self.lent)? {
            self.count(self.lent..self.lent + length);
            self.lent += length;
        }
        Ok(())
    }

    /// Returns the counts of the blocks read so far.
    pub fn counts(&self) -> MonitorCounts {
        self.counts
    }

    /// Returns a second handle of the connection, with which another thread can end the monitor by
    /// `shutdown(Shutdown::Write)`. The stream still contains all packets copied before.
    ///
    /// # Errors
    /// Returns the system's error if it has no free descriptor.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Tells the bridge to end the monitor. The stream still contains all packets copied before.
    ///
    /// # Errors
    /// Returns the system's error if the connection is closed.
    pub fn end(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn failed(&self, source: io::Error) -> ClientError {
        ClientError::Io { path: self.path.clone(), source }
    }

    /// Returns the length of the block that begins at `start`; `None` if it is incomplete.
    fn block_at(&self, start: usize) -> Result<Option<usize>, ClientError> {
        let rest = &self.bytes[start..];
        let Some(length) = word(rest, 4) else { return Ok(None) };
        let length = length as usize;
        if !(12..=MOST).contains(&length) || !length.is_multiple_of(4) {
            let problem = format!("a block of {length} bytes in the monitor's stream");
            return Err(ClientError::Malformed { path: self.path.clone(), problem });
        }
        Ok(Some(length).filter(|&length| length <= rest.len()))
    }

    fn count(&mut self, block: std::ops::Range<usize>) {
        let block = &self.bytes[block];
        match word(block, 0) {
            Some(PACKET) => self.counts.packets += 1,
            Some(STATISTICS) => {
                self.counts.dropped += dropped(block);
                self.counts.is_whole = true;
            }
            _ => {}
        }
    }
}

impl AsFd for MonitorStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the 32-bit number at an offset of a block; `None` if the block is too short.
fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Returns the number of dropped packets (`isb_ifdrop`) in a statistics block; 0 if the block lacks
/// this option.
fn dropped(block: &[u8]) -> u64 {
    // 20 bytes precede the options: type, length, interface and time. The length is repeated last.
    let mut options = block.get(20..block.len() - 4).unwrap_or(&[]);
    while let Some((&[a, b, c, d], rest)) = options.split_first_chunk() {
        let (code, length) = (u16::from_ne_bytes([a, b]), usize::from(u16::from_ne_bytes([c, d])));
        if code == DROPPED {
            return rest.first_chunk().map_or(0, |count| u64::from_ne_bytes(*count));
        }
        options = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    0
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 12).to_ne_bytes();
        [&kind.to_ne_bytes()[..], &length, body, &length].concat()
    }

    fn stream(first_bytes: &[u8]) -> (MonitorStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        (MonitorStream::new("here".into(), ours, first_bytes.to_vec()).expect("no timeout"), theirs)
    }

    #[test]
    fn only_complete_blocks_are_returned() {
        let option = |code: u16, count: u64| {
            [&code.to_ne_bytes()[..], &8u16.to_ne_bytes(), &count.to_ne_bytes()].concat()
        };
        let statistics = [&[0; 12][..], &option(4, 9), &option(5, 7), &[0; 4]].concat();
        let blocks = [
            block(PACKET, &[1; 20]),
            block(1, &[2; 8]),
            block(PACKET, &[]),
            block(STATISTICS, &statistics),
        ];
        let whole = blocks.concat();
        for cut in [0, 1, 7, 8, 31, 32, 33, whole.len() - 1, whole.len()] {
            let (mut stream, mut bridge) = stream(&whole[..cut.min(10)]);
            let mut read = Vec::new();
            if cut > 10 {
                bridge.write_all(&whole[10..cut]).expect("is read");
                let lent = stream.read().expect("reads").expect("goes on");
                assert!(
                    [0, 32, 52, 64, whole.len()].contains(&lent.len()),
                    "{cut}: {}",
                    lent.len()
                );
                read.extend_from_slice(lent);
            }
            bridge.write_all(&whole[cut..]).expect("is read");
            drop(bridge);
            while let Some(lent) = stream.read().expect("reads") {
                read.extend_from_slice(lent);
            }
            assert_eq!(read, whole, "{cut}");
            assert_eq!(stream.counts(), MonitorCounts { packets: 2, dropped: 7, is_whole: true });
        }
    }

    #[test]
    fn an_incomplete_or_invalid_stream_is_an_error() {
        let (mut broken, bridge) = stream(&block(PACKET, &[1; 20])[..31]);
        drop(bridge);
        let error = broken.read().expect_err("half a block").to_string();
        assert!(error.contains("ends 31 bytes into a block"), "{error}");
        for length in [0u32, 8, 13, 1 << 30] {
            let (mut none, _bridge) =
                stream(&[&PACKET.to_ne_bytes()[..], &length.to_ne_bytes()].concat());
            none.socket.set_nonblocking(true).expect("set");
            drop(_bridge);
            let error = none.read().expect_err("no block").to_string();
            assert!(error.contains(&format!("a block of {length} bytes")), "{error}");
        }
    }
}
