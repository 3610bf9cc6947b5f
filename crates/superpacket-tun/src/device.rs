//! The trait of devices from which packets are read and to which they are written.

use std::io::{self, IoSlice};
use std::sync::Arc;

/// One queue of a device. A read returns one packet, and a write takes one, each with a
/// `virtio_net_hdr` before it if the device uses one.
///
/// `Queue` implements this trait for TUN devices; tests implement it in memory.
pub trait Device {
    /// Reads one packet, after its `virtio_net_hdr` if the device uses one, into `buffer`. Returns
    /// the number of bytes.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no packet now; any other error of the
    /// device.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes one packet, after its `virtio_net_hdr` if the device uses one: all slices, or
    /// nothing.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the device is full now;
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) (`EINVAL`) or
    /// [`Unsupported`](io::ErrorKind::Unsupported) if it does not accept this packet; any other
    /// error of the device.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()>;

    /// Waits until a packet can be read.
    ///
    /// # Errors
    /// Any error of the device.
    fn wait_readable(&self) -> io::Result<()>;

    /// Waits until a packet can be written.
    ///
    /// # Errors
    /// Any error of the device.
    fn wait_writable(&self) -> io::Result<()>;
}

/// Implements [`Device`] for pointers to devices.
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
