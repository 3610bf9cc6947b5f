//! Sockets with a path: their files are created, replaced and removed here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, chmod, fchmod, unlink};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, bind, connect, sockopt};

use crate::PortError;

/// The preferred size of a socket's send buffer in bytes: one poll of frames of 1,500 bytes. The
/// system may limit it (`net.core.wmem_max`). On macOS, it also limits the length of a datagram.
const SEND_BUFFER: usize = 1 << 20;

/// Flags of sending: a call never blocks, and never raises `SIGPIPE`. Apple's systems have a socket
/// option for the latter instead.
#[cfg(target_os = "linux")]
pub(super) const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(not(target_os = "linux"))]
pub(super) const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

/// Creates a socket that never blocks.
pub(crate) fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    let socket = {
        use rustix::net::{SocketFlags, socket_with};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, kind, flags, None)?
    };
    #[cfg(not(target_os = "linux"))]
    let socket = {
        let socket = rustix::net::socket(AddressFamily::UNIX, kind, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        socket
    };
    prepare(&socket);
    Ok(socket)
}

/// Sets the options of a socket that sends frames. The port also works without them.
pub(super) fn prepare(socket: impl AsFd) {
    #[cfg(target_os = "linux")]
    if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_ok() {
        return;
    }
    #[cfg(target_vendor = "apple")]
    let _ = sockopt::set_socket_nosigpipe(&socket, true);
    let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
}

/// The file of a socket that this port has created, removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file, so that another one with the same path is not removed.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Creates a socket that is bound to `path`. A file that no socket uses any more is replaced.
    ///
    /// # Errors
    /// [`PortError`] if a socket in use or another file has this path, or if a system call fails.
    pub(crate) fn bind(
        port: &str,
        path: &Path,
        kind: SocketType,
        mode: Mode,
    ) -> Result<(OwnedFd, SocketFile), PortError> {
        let system = |action| move |error: Errno| PortError::system(port, action, error);
        let address = SocketAddrUnix::new(path).map_err(system("use the path of the socket"))?;
        let socket = new_socket(kind).map_err(system("create the socket (socket)"))?;
        // On Linux the file gets the access bits of the socket, so that they apply from the
        // beginning. Other systems refuse this.
        let _ = fchmod(&socket, mode);
        let bound = match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_unused(port, path, &address, kind)?;
                bind(&socket, &address)
            }
            bound => bound,
        };
        bound.map_err(system("create the socket's file (bind)"))?;
        let file = SocketFile { identity: identity(path).ok(), path: path.to_owned() };
        chmod(path, mode).map_err(system("set the access bits of the socket's file (chmod)"))?;
        Ok((socket, file))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path).ok() == self.identity {
            // Fails if the bridge has given up the rights to the directory. The file is then
            // replaced when the port is opened again.
            let _ = unlink(&self.path);
        }
    }
}

/// Returns the device and the number of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|file| (file.dev(), file.ino()))
}

/// Removes the file of a socket that no process uses any more.
fn remove_unused(
    port: &str,
    path: &Path,
    address: &SocketAddrUnix,
    kind: SocketType,
) -> Result<(), PortError> {
    let unsupported = |reason: &str| PortError::Unsupported {
        port: port.into(),
        reason: format!("{} {reason}", path.display()),
    };
    let file = path
        .symlink_metadata()
        .map_err(|error| PortError::system(port, "look at the socket's file", error))?;
    if !file.file_type().is_socket() {
        return Err(unsupported("exists and is not a socket"));
    }
    let probe = new_socket(kind)
        .map_err(|error| PortError::system(port, "create a socket (socket)", error))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => match unlink(path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                let action = "remove the file of a socket that is not in use (unlink)";
                Err(PortError::system(port, action, io::Error::from(error)))
            }
        },
        Err(Errno::NOENT) => Ok(()),
        _ => Err(unsupported("is the socket of a running process")),
    }
}
