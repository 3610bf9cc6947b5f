//! Where the bytes of packets lie: in the buffers that a packet holds, or with the caller of a
//! poll.

/// Finds the bytes of a packet's buffers.
///
/// A buffer of type `B` may hold its bytes ([`InBuffers`]), or be a number under which somebody
/// else finds them.
pub trait Memory<B> {
    /// Returns the bytes of a buffer; none for a number that is not known.
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8];
}

/// The buffers hold their bytes themselves.
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
