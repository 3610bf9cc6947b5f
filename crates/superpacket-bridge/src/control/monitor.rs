//! The client's side of a monitor: a stream of pcapng, block by block.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::client_error::ClientError;

/// Bytes that are read at once.
const READ: usize = 256 << 10;

/// The longest block that is taken for one, in bytes: far more than the longest packet.
const MOST: usize = 1 << 24;

/// Types of blocks (draft-ietf-opsawg-pcapng, section 4).
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Of statistics, the option that says how many packets were dropped (`isb_ifdrop`).
const DROPPED: u16 = 5;

/// What has been read of a monitor's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorCounts {
    /// Packets.
    pub packets: u64,
    /// Packets that the bridge dropped for this monitor, because they were not read in time: known
    /// at the end.
    pub dropped: u64,
    /// The stream has ended as a whole: with what was counted.
    pub is_whole: bool,
}

/// The copies of a monitor, as they come: a section of pcapng, in the byte order of the bridge's
/// machine, which is this one.
#[derive(Debug)]
pub struct MonitorStream {
    path: PathBuf,
    socket: UnixStream,
    /// What was read and is not a whole block yet, behind `lent` bytes of blocks that are.
    bytes: Vec<u8>,
    lent: usize,
    counts: MonitorCounts,
}

impl MonitorStream {
    pub(super) fn new(
        path: PathBuf,
        socket: UnixStream,
        begun: Vec<u8>,
    ) -> Result<Self, ClientError> {
        // Packets may be long in coming.
        socket
            .set_read_timeout(None)
            .map_err(|source| ClientError::Io { path: path.clone(), source })?;
        Ok(MonitorStream { path, socket, bytes: begun, lent: 0, counts: MonitorCounts::default() })
    }

    /// Waits for more of the stream, and lends it: whole blocks, one or several; `None` at the end.
    /// It may lend none, if all that has come is a part of one.
    ///
    /// # Errors
    /// [`ClientError::Io`] if the connection fails, also if it ends within a block;
    /// [`ClientError::Malformed`] if what comes is no pcapng.
    pub fn read(&mut self) -> Result<Option<&[u8]>, ClientError> {
        self.bytes.drain(..std::mem::take(&mut self.lent));
        // What came with the answer.
        self.lend()?;
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
        self.lend()?;
        if read == 0 {
            if self.bytes.is_empty() {
                return Ok(None);
            }
            let rest = format!("the stream breaks off {} bytes into a block", self.bytes.len());
            return Err(self.failed(io::Error::new(io::ErrorKind::UnexpectedEof, rest)));
        }
        Ok(Some(&self.bytes[..self.lent]))
    }

    /// Looks how many whole blocks there are.
    fn lend(&mut self) -> Result<(), ClientError> {
        while let Some(length) = self.block_at(self.lent)? {
            self.count(self.lent..self.lent + length);
            self.lent += length;
        }
        Ok(())
    }

    /// What has been read so far.
    pub fn counts(&self) -> MonitorCounts {
        self.counts
    }

    /// Another handle of the connection, by which another thread ends the monitor:
    /// `shutdown(Shutdown::Write)`. What the bridge has copied by then still comes.
    ///
    /// # Errors
    /// What the system says if there is no descriptor.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// Tells the bridge to end the monitor; what it has copied so far still comes.
    ///
    /// # Errors
    /// What the system says if the connection is gone.
    pub fn end(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn failed(&self, source: io::Error) -> ClientError {
        ClientError::Io { path: self.path.clone(), source }
    }

    /// The length of the block that begins there; `None` if it is not there whole.
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

/// The number at this place of a block.
fn word(bytes: &[u8], place: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(place..)?.first_chunk()?))
}

/// How many packets a statistics block says were dropped.
fn dropped(block: &[u8]) -> u64 {
    // Its type and length, the interface and the time come first, its length again last.
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

    fn stream(begun: &[u8]) -> (MonitorStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        (MonitorStream::new("here".into(), ours, begun.to_vec()).expect("no timeout"), theirs)
    }

    #[test]
    fn blocks_are_lent_whole_however_they_come() {
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
    fn a_stream_that_breaks_off_or_is_none_is_an_error() {
        let (mut broken, bridge) = stream(&block(PACKET, &[1; 20])[..31]);
        drop(bridge);
        let error = broken.read().expect_err("half a block").to_string();
        assert!(error.contains("breaks off 31 bytes into a block"), "{error}");
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
