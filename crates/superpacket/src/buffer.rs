//! Buffers of the caller into which the engine writes: packets are merged in them, or segments are
//! written to them.

use alloc::vec::Vec;

use superpacket_simd::{Simd, prefetch_range};

/// A buffer that holds a packet and may have room for more bytes behind it.
pub trait PacketBuffer: AsRef<[u8]> + AsMut<[u8]> {
    /// Returns the number of bytes that [`extend_from_slice`](Self::extend_from_slice) can append
    /// without a reallocation.
    fn spare(&self) -> usize;

    /// Truncates the buffer to its first `length` bytes; a shorter buffer stays unchanged.
    fn truncate(&mut self, length: usize);

    /// Appends bytes, at most as many as are [spare](Self::spare).
    fn extend_from_slice(&mut self, bytes: &[u8]);

    /// Appends bytes as [`extend_from_slice`](Self::extend_from_slice) does, and returns their
    /// [sum](Simd::sum). May prefetch `ahead`, which will be appended to some buffer soon.
    #[inline]
    fn extend_and_sum(&mut self, bytes: &[u8], ahead: &[u8], simd: Simd) -> u16 {
        prefetch_range(ahead, bytes.len());
        self.extend_from_slice(bytes);
        simd.sum(bytes)
    }
}

impl PacketBuffer for Vec<u8> {
    #[inline]
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    #[inline]
    fn truncate(&mut self, length: usize) {
        Vec::truncate(self, length);
    }

    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        Vec::extend_from_slice(self, bytes);
    }

    #[inline]
    fn extend_and_sum(&mut self, bytes: &[u8], ahead: &[u8], simd: Simd) -> u16 {
        simd.extend_and_sum_ahead(self, bytes, ahead)
    }
}

#[cfg(feature = "bytes")]
impl PacketBuffer for bytes::BytesMut {
    #[inline]
    fn spare(&self) -> usize {
        self.capacity() - self.len()
    }

    #[inline]
    fn truncate(&mut self, length: usize) {
        bytes::BytesMut::truncate(self, length);
    }

    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        bytes::BytesMut::extend_from_slice(self, bytes);
    }
}

impl<B: PacketBuffer + ?Sized> PacketBuffer for &mut B {
    #[inline]
    fn spare(&self) -> usize {
        (**self).spare()
    }

    #[inline]
    fn truncate(&mut self, length: usize) {
        (**self).truncate(length);
    }

    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        (**self).extend_from_slice(bytes);
    }

    #[inline]
    fn extend_and_sum(&mut self, bytes: &[u8], ahead: &[u8], simd: Simd) -> u16 {
        (**self).extend_and_sum(bytes, ahead, simd)
    }
}

/// A [`PacketBuffer`] in a mutable slice, such as a slot of a pool or a frame of a UMEM; the packet
/// is at the start of the slice.
#[derive(Debug)]
pub struct SliceBuffer<'a> {
    slice: &'a mut [u8],
    length: usize,
}

impl<'a> SliceBuffer<'a> {
    /// Makes a buffer of a slice whose first `length` bytes hold the packet; if the slice is
    /// shorter, all of it does.
    #[inline]
    pub fn new(slice: &'a mut [u8], length: usize) -> Self {
        let length = length.min(slice.len());
        SliceBuffer { slice, length }
    }
}

impl AsRef<[u8]> for SliceBuffer<'_> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.slice.get(..self.length).unwrap_or(&[])
    }
}

impl AsMut<[u8]> for SliceBuffer<'_> {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.slice.get_mut(..self.length).unwrap_or(&mut [])
    }
}

impl PacketBuffer for SliceBuffer<'_> {
    #[inline]
    fn spare(&self) -> usize {
        self.slice.len() - self.length
    }

    #[inline]
    fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        let room = self.slice.get_mut(self.length..).unwrap_or(&mut []);
        let fits = bytes.len().min(room.len());
        room[..fits].copy_from_slice(&bytes[..fits]);
        self.length += fits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_takes_what_fits() {
        let mut slice = [0; 5];
        let mut buffer = SliceBuffer::new(&mut slice, 2);
        assert_eq!((buffer.as_ref().len(), buffer.spare()), (2, 3));
        buffer.extend_from_slice(&[7, 8]);
        buffer.truncate(3);
        assert_eq!((buffer.as_ref(), buffer.spare()), (&[0, 0, 7][..], 2));
        buffer.as_mut()[0] = 9;
        buffer.extend_from_slice(&[1, 2, 3]);
        assert_eq!(buffer.as_ref(), [9, 0, 7, 1, 2], "what is more than spare is left out");
        assert_eq!(SliceBuffer::new(&mut [0; 3], 9).spare(), 0);
    }
}
