//! Access to the bytes of buffers. A buffer contains its bytes, or is an index of bytes that the
//! caller lends for one call.

/// Finds the bytes of a packet's buffers.
///
/// A buffer of type `B` holds its bytes ([`InBuffers`]), or is a number by which they are found.
pub trait Memory<B> {
    /// Returns the bytes of a buffer; an empty slice if the buffer is an index that is out of
    /// range.
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8];
}

/// The [`Memory`] of buffers that contain their bytes themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InBuffers;

impl<B: AsRef<[u8]>> Memory<B> for InBuffers {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8] {
        buffer.as_ref()
    }
}

impl<B, M: Memory<B> + ?Sized> Memory<B> for &M {
    #[inline(always)]
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8] {
        (**self).bytes(buffer)
    }
}
