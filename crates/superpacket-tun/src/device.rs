//! What packets are read from and written to.

use std::io::{self, IoSlice};
use std::sync::Arc;

/// One queue of a device: a read gives one packet, a write takes one, behind a `virtio_net_hdr` if
/// the device has one.
///
/// `Queue` implements it for TUN devices. Tests implement it in memory.
pub trait Device {
    /// Reads one packet, behind its header, into `buffer`. Returns how many bytes that are.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none now; others as the device has
    /// them.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes one packet, behind its header: all of these slices or nothing.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the device is full now;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) (`EINVAL`) or
    /// [`Unsupported`](io::ErrorKind::Unsupported) for a packet that it does not take; others as
    /// the device has them.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()>;

    /// Waits until there is something to read.
    ///
    /// # Errors
    /// The device's own.
    fn wait_readable(&self) -> io::Result<()>;

    /// Waits until there is room to write.
    ///
    /// # Errors
    /// The device's own.
    fn wait_writable(&self) -> io::Result<()>;
}

/// Makes a device of what leads to one.
macro_rules! forward {
    ($($type:ty),*) => {$(
        impl<D: Device + ?Sized> Device for $type {
            #[inline]
            fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                (**self).read(buffer)
            }

            #[inline]
            fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
                (**self).write(slices)
            }

            fn wait_readable(&self) -> io::Result<()> {
                (**self).wait_readable()
            }

            fn wait_writable(&self) -> io::Result<()> {
                (**self).wait_writable()
            }
        }
    )*};
}

forward!(&D, Arc<D>);
