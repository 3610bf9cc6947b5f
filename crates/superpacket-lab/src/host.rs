//! A virtual host: a network namespace that disappears with its last holder, because only file
//! descriptors refer to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use superpacket_port::system::{
    RouteSocket, enter_new_network_namespace, start_in_network_namespace,
};

use crate::error::{Context, LabError};
use crate::privilege;

/// Interface index of the loopback interface in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// A virtual host: a network namespace, and a name for messages.
///
/// Only file descriptors hold it: this value, its clones, sockets created in it and threads that
/// run in it. When the last one is closed, even by a kill, the kernel removes the namespace and its
/// interfaces. Clones refer to the same host.
#[derive(Clone, Debug)]
pub struct Host {
    name: Arc<str>,
    namespace: Arc<OwnedFd>,
}

impl Host {
    /// Creates a host whose only interface is loopback, which is up.
    ///
    /// IPv6 sends no duplicate address detection and no router solicitations, so that links carry
    /// only the test's traffic. If `/proc/sys` is read-only, the defaults of IPv6 remain. `name` is
    /// used in messages and thread names only.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] with the reason if the kernel refuses a namespace;
    /// [`LabError::Invalid`] if the process is not root and has not called
    /// [`crate::enter_user_namespace_if_needed`]; [`LabError::System`] for all other failures.
    pub fn new(name: &str) -> Result<Self, LabError> {
        let namespace = thread::scope(|scope| {
            let made = scope.spawn(|| {
                enter_new_network_namespace()
                    .map_err(|error| privilege::namespace_error(&error))?;
                File::open("/proc/thread-self/ns/net")
                    .context(|| format!("host {name}: opening its namespace"))
            });
            made.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        let host = Self { name: name.into(), namespace: Arc::new(namespace.into()) };
        for (name, value) in [
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/default/router_solicitations", "0"),
        ] {
            // Best effort, as documented: in a container /proc/sys may be read-only, or IPv6
            // absent.
            let _ = host.set_sysctl(name, value);
        }
        let mut loopback = LinkMessage::default();
        loopback.header.index = LOOPBACK;
        (loopback.header.flags, loopback.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        let up = || RouteSocket::open()?.request(RouteNetlinkMessage::SetLink(loopback), 0);
        host.run(|| up().context(|| format!("host {name}: setting its loopback up")))?;
        Ok(host)
    }

    /// Returns the host that the calling thread is in. Initially this is the namespace in which the
    /// process was started, usually the machine's.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if `/proc` is not mounted.
    pub fn of_this_thread(name: &str) -> Result<Self, LabError> {
        let namespace = File::open("/proc/thread-self/ns/net")
            .context(|| format!("host {name}: opening the thread's namespace"))?;
        Ok(Self { name: name.into(), namespace: Arc::new(namespace.into()) })
    }

    /// Returns the network namespace behind a file, such as `/run/netns/NAME` (ip-netns(8)) or
    /// `/proc/PID/ns/net`; `name` is used in messages.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the file cannot be opened. A file of another type, or one that may
    /// not be entered, causes an error at the first use.
    pub fn of_file(name: &str, path: &Path) -> Result<Self, LabError> {
        let namespace = File::open(path)
            .context(|| format!("host {name}: opening its namespace {}", path.display()))?;
        Ok(Self { name: name.into(), namespace: Arc::new(namespace.into()) })
    }

    /// Returns the name that was given at creation.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread inside this host, waits for it, and propagates its panic.
    /// Sockets created there stay in this host and may be returned.
    ///
    /// # Errors
    ///
    /// The error of `work`, or a failure to start the thread or to enter the namespace.
    pub fn run<T, E>(&self, work: impl FnOnce() -> Result<T, E> + Send) -> Result<T, E>
    where
        T: Send,
        E: From<LabError> + Send,
    {
        thread::scope(|scope| {
            let builder = thread::Builder::new().name(self.thread_name());
            let started = builder.spawn_scoped(scope, || {
                self.enter()?;
                work()
            });
            match started.context(|| format!("host {}: starting a thread", self.name))?.join() {
                Ok(result) => result,
                Err(panic) => resume_unwind(panic),
            }
        })
    }

    /// Starts a background thread inside this host. The host exists at least until the thread ends.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the thread cannot be started. If it cannot enter the namespace, its
    /// result is the error.
    pub fn spawn<T, E>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<thread::JoinHandle<Result<T, E>>, LabError>
    where
        T: Send + 'static,
        E: From<LabError> + Send + 'static,
    {
        let host = self.clone();
        let started = thread::Builder::new().name(self.thread_name()).spawn(move || {
            host.enter()?;
            work()
        });
        started.context(|| format!("host {}: starting a thread", self.name))
    }

    /// Returns a [`Command`] that will run inside this host; the caller sets arguments and streams.
    ///
    /// The program is killed when the thread that starts it ends (PR_SET_PDEATHSIG), so that no
    /// program outlives the lab.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        start_in_network_namespace(&mut command, Arc::clone(&self.namespace));
        command
    }

    /// Runs a program inside this host and returns its standard output.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] if the program is not installed; [`LabError::System`] with its
    /// standard error if it fails.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        let what = || format!("host {}: {program} {}", self.name, arguments.join(" "));
        let output = match self.command(program).args(arguments).output() {
            // execvp(3) also reports EACCES for a missing program if a directory of PATH is closed.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                return Err(LabError::Unsupported {
                    what: what(),
                    reason: format!("`{program}` is not installed, or not for this user"),
                });
            }
            other => other.context(what)?,
        };
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(LabError::system(
                what(),
                io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            ))
        }
    }

    /// Moves the calling thread into this host permanently.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses, such as after capabilities were dropped.
    pub fn enter(&self) -> Result<(), LabError> {
        match move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network)) {
            // Without the capability to enter, a thread may still stay in its own namespace.
            Err(Errno::PERM) if self.is_here() => Ok(()),
            entered => entered.context(|| format!("host {}: entering its namespace", self.name)),
        }
    }

    /// Returns whether the calling thread is in this host.
    fn is_here(&self) -> bool {
        let (here, there) = (stat("/proc/thread-self/ns/net"), fstat(&self.namespace));
        here.is_ok_and(|here| {
            there.is_ok_and(|there| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
        })
    }

    fn thread_name(&self) -> String {
        // The kernel keeps 15 bytes of a thread's name; Rust rejects a NUL in it.
        format!("lab:{}", self.name.replace('\0', "?"))
    }
}

impl AsFd for Host {
    /// Returns the namespace, as `setns(2)` and `IFLA_NET_NS_FD` take it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}
