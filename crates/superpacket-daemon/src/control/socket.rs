//! The control socket's file: its creation and permissions, the replacement of an abandoned file,
//! and its removal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Gid, Uid};

/// An error while creating the control socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another bridge listens on this path.
    #[error(
        "{path}: another bridge uses this control socket: give this one a different --control PATH"
    )]
    Taken {
        /// Path of the socket file.
        path: PathBuf,
    },
    /// A file that is not a socket exists at this path; it is not changed.
    #[error("{path}: the file exists and is not a socket")]
    NoSocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{path}: {action}: {source}")]
    System {
        /// Path of the socket file.
        path: PathBuf,
        /// The failed action, with the system call's name.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

/// A listening control socket, whose clients wait until a [`ControlServer`](super::ControlServer)
/// serves them. Dropping it removes the file.
#[derive(Debug)]
pub struct ControlSocket {
    socket: OwnedFd,
    file: SocketFile,
}

impl ControlSocket {
    /// Creates the socket's file, with mode 0600 from the start. An existing socket file on which
    /// no process listens is replaced.
    ///
    /// # Errors
    /// [`SocketError`] if another bridge listens on this path, a different kind of file is there,
    /// or a system call fails.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let system = |action| {
            move |errno: Errno| SocketError::System {
                path: path.to_owned(),
                action,
                source: errno.into(),
            }
        };
        let address = SocketAddrUnix::new(path)
            .map_err(system("socket address (its path has at most 107 bytes)"))?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(system("socket"))?;
        // Linux gives the file the mode of the unbound socket, less the umask (unix_bind_bsd).
        // Setting the umask instead would affect all threads.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(system("fchmod"))?;
        remove_abandoned(path)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(SocketError::Taken { path: path.to_owned() }),
            Err(errno) => return Err(system("bind")(errno)),
        }
        let metadata = std::fs::symlink_metadata(path).map_err(|source| SocketError::System {
            path: path.to_owned(),
            action: "lstat",
            source,
        })?;
        let file = SocketFile { path: path.to_owned(), identity: identity(&metadata) };
        rustix::net::listen(&socket, 16).map_err(system("listen"))?;
        Ok(ControlSocket { socket, file })
    }

    /// Gives the file to the user and group that the bridge is going to run as.
    ///
    /// # Errors
    /// [`SocketError::NoSocket`] if the file has been replaced; [`SocketError::System`] if a system
    /// call fails, as it does without root's privileges.
    pub fn give_to(&self, user: Uid, group: Gid) -> Result<(), SocketError> {
        let path = &self.file.path;
        let system = |action| {
            move |errno: Errno| SocketError::System {
                path: path.clone(),
                action,
                source: errno.into(),
            }
        };
        // Use a descriptor of the file that was created, and do not follow links. Otherwise a user
        // who can write to the directory could make root give away any file.
        let file = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(system("open"))?;
        let stat = rustix::fs::fstat(&file).map_err(system("fstat"))?;
        if (stat.st_dev, stat.st_ino) != self.file.identity {
            return Err(SocketError::NoSocket { path: path.clone() });
        }
        rustix::fs::chownat(&file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)
            .map_err(system("chown"))
    }

    /// Returns the path of the socket's file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Splits this value into the listening socket and the [`SocketFile`], which removes the file
    /// when dropped.
    pub(super) fn into_parts(self) -> (OwnedFd, SocketFile) {
        (self.socket, self.file)
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The file of a control socket. Dropping this removes the file, unless it has been replaced.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// The file's device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| identity(&metadata) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            // A bridge that has changed its user may have no permission to remove the file. The
            // next bridge replaces it.
            tracing::info!(path = %self.path.display(), %error, "the control socket's file cannot be removed");
        }
    }
}

/// Returns a file's device and inode.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes a socket file on which no process listens.
///
/// # Errors
/// [`SocketError`], as for [`ControlSocket::bind`].
fn remove_abandoned(path: &Path) -> Result<(), SocketError> {
    let system = |action| {
        move |source: io::Error| SocketError::System { path: path.to_owned(), action, source }
    };
    let taken = || SocketError::Taken { path: path.to_owned() };
    let found = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => identity(&metadata),
        Ok(_) => return Err(SocketError::NoSocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("lstat")(error)),
    };
    let address =
        SocketAddrUnix::new(path).map_err(|errno| system("socket address")(errno.into()))?;
    // Do not wait: the queue of a stopped bridge (SIGSTOP) stays full.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|errno| system("socket")(errno.into()))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => return Err(taken()),
        Err(Errno::CONNREFUSED) => {}
        // The file was removed in the meantime.
        Err(Errno::NOENT) => return Ok(()),
        // A socket with a full queue has a listener.
        Err(Errno::AGAIN) => return Err(taken()),
        Err(errno) => return Err(system("connect to the existing socket")(errno.into())),
    }
    // Another starting bridge may have found the same file and replaced it by its own since. Rename
    // the file first, and check that it is the one that was found.
    let mut renamed = path.as_os_str().to_owned();
    renamed.push(format!(".{}", std::process::id()));
    let renamed = PathBuf::from(renamed);
    match std::fs::rename(path, &renamed) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(system("rename, to replace the socket of a bridge that is gone")(error));
        }
    }
    let moved = std::fs::symlink_metadata(&renamed).map_err(system("lstat"))?;
    if identity(&moved) != found {
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            &renamed,
            rustix::fs::CWD,
            path,
            RenameFlags::NOREPLACE,
        )
        .map_err(|errno| system("rename, to restore another bridge's socket")(errno.into()))?;
        return Err(taken());
    }
    std::fs::remove_file(&renamed).map_err(system("unlink"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_file_is_private_from_the_start_and_is_removed_at_the_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let socket = ControlSocket::bind(&path).expect("binds");
        assert_eq!(std::fs::metadata(&path).expect("is there").mode() & 0o777, 0o600);
        drop(socket);
        assert_eq!(std::fs::read_dir(directory.path()).expect("lists").count(), 0);
    }

    #[test]
    fn the_socket_of_a_dead_bridge_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        // A killed bridge leaves a file without a listener.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
        assert!(path.exists());
        // A process that another test starts has the listener too, until it executes its program.
        let start = std::time::Instant::now();
        while UnixStream::connect(&path).is_ok()
            && start.elapsed() < std::time::Duration::from_secs(10)
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let socket = ControlSocket::bind(&path).expect("replaces it");
        let error = ControlSocket::bind(&path).expect_err("it is live");
        assert!(
            matches!(error, SocketError::Taken { .. }) && error.to_string().contains("--control"),
            "{error}"
        );
        UnixStream::connect(&path).expect("the first is still there");
        drop(socket);
    }

    #[test]
    fn other_files_are_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        std::fs::write(&path, "precious").expect("writes");
        assert!(matches!(ControlSocket::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), "precious");
        let error =
            ControlSocket::bind(&directory.path().join("absent/s")).expect_err("no directory");
        assert!(error.to_string().contains("absent/s: bind"), "{error}");
        let long = directory.path().join("x".repeat(120));
        assert!(ControlSocket::bind(&long).expect_err("too long").to_string().contains("107"));
    }

    #[test]
    fn a_socket_that_replaced_ours_is_not_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let first = ControlSocket::bind(&path).expect("binds");
        std::fs::remove_file(&path).expect("somebody removes it");
        let second = ControlSocket::bind(&path).expect("binds");
        drop(first);
        UnixStream::connect(&path).expect("the second is there");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_stopped_bridge_blocks_neither_the_next_bridge_nor_clients() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let _stopped = ControlSocket::bind(&path).expect("binds");
        let address = SocketAddrUnix::new(&path).expect("short");
        let mut clients = Vec::new();
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let client =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .expect("a socket");
            match rustix::net::connect(&client, &address) {
                Ok(()) => clients.push(client),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN, "its queue is full"),
            }
        }
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let connected =
                super::super::client::connect_within(&path, std::time::Duration::from_millis(50));
            done.send((ControlSocket::bind(&path).map(drop), connected.map(drop)))
        });
        let (bound, connected) =
            wait.recv_timeout(std::time::Duration::from_secs(5)).expect("neither waits");
        assert!(matches!(bound, Err(SocketError::Taken { .. })), "{bound:?}");
        assert_eq!(connected.expect_err("its queue is full").kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_target_of_a_link_is_not_given_away() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let socket = ControlSocket::bind(&path).expect("binds");
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        socket.give_to(user, group).expect("to oneself");
        std::fs::remove_file(&path).expect("removes");
        let precious = directory.path().join("precious");
        std::fs::write(&precious, "").expect("writes");
        std::os::unix::fs::symlink(&precious, &path).expect("links");
        assert!(matches!(socket.give_to(user, group), Err(SocketError::NoSocket { .. })));
    }
}
