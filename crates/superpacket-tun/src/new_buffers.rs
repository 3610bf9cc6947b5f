//! Puts each packet into a new buffer.

use std::ops::DerefMut;

use superpacket::segment::SegmentBuffers;

/// Puts each packet that is read into a new buffer, from a pool or allocated.
///
/// ```
/// use superpacket_tun::NewBuffers;
///
/// let mut packets: Vec<Vec<u8>> = Vec::new();
/// let mut buffers = NewBuffers::new(&mut packets, |length| vec![0; length]);
/// # let _ = &mut buffers;
/// // reader.read_into(&mut buffers)?;
/// ```
#[derive(Debug)]
pub struct NewBuffers<'a, B, F> {
    packets: &'a mut Vec<B>,
    make: F,
}

impl<'a, B: DerefMut<Target = [u8]>, F: FnMut(usize) -> B> NewBuffers<'a, B, F> {
    /// Appends packets to `packets`. `make` returns a buffer of at least the
    /// given length in bytes, which becomes the packet's length.
    pub const fn new(packets: &'a mut Vec<B>, make: F) -> Self {
        NewBuffers { packets, make }
    }
}

impl<B: DerefMut<Target = [u8]>, F: FnMut(usize) -> B> SegmentBuffers for NewBuffers<'_, B, F> {
    #[inline]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        self.packets.push((self.make)(length));
        self.packets.last_mut().map(DerefMut::deref_mut)
    }
}
