//! A host: a network namespace that lives as long as something of this process holds it, and has no
//! name that could stay behind.

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

/// The number of each host's loopback interface (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// A host of the lab: a network namespace with a name for messages.
///
/// Only file descriptors hold it (this value, its clones, sockets made in it, threads that run in
/// it). When the last is gone, also because the process was killed, the kernel removes the
/// namespace and every interface in it. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    name: Arc<str>,
    namespace: Arc<OwnedFd>,
}

impl Host {
    /// A new, empty host: loopback up, no other interface; IPv6 without duplicate address detection
    /// and router solicitations, so that nothing but the test's own traffic appears on its links
    /// (where `/proc/sys` is read-only, IPv6 keeps its ways).
    ///
    /// `name` is for messages and thread names only.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] with the reason where the kernel refuses a namespace;
    /// [`LabError::Invalid`] where the process is not root and has not called
    /// [`crate::enter_user_namespace_if_needed`]; [`LabError::System`] for all else.
    pub fn new(name: &str) -> Result<Self, LabError> {
        let namespace = thread::scope(|scope| {
            let made = scope.spawn(|| {
                enter_new_network_namespace().map_err(|error| privilege::refused(&error))?;
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
            // Best effort, as the documentation says: a container may have /proc/sys read-only, or
            // no IPv6.
            let _ = host.set_sysctl(name, value);
        }
        let mut loopback = LinkMessage::default();
        loopback.header.index = LOOPBACK;
        (loopback.header.flags, loopback.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        let up = || RouteSocket::open()?.request(RouteNetlinkMessage::SetLink(loopback), 0);
        host.run(|| up().context(|| format!("host {name}: setting its loopback up")))?;
        Ok(host)
    }

    /// The host that the calling thread is in; at the beginning, the machine itself, or the
    /// namespace that the process was started in.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where `/proc` is not mounted.
    pub fn of_this_thread(name: &str) -> Result<Self, LabError> {
        let namespace = File::open("/proc/thread-self/ns/net")
            .context(|| format!("host {name}: opening the thread's namespace"))?;
        Ok(Self { name: name.into(), namespace: Arc::new(namespace.into()) })
    }

    /// The network namespace that a file stands for, such as `/run/netns/NAME` (ip-netns(8)) or
    /// `/proc/PID/ns/net`; `name` is for messages.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the file cannot be opened; that it is no network namespace, or
    /// not to be entered, shows at the first use.
    pub fn of_file(name: &str, path: &Path) -> Result<Self, LabError> {
        let namespace = File::open(path)
            .context(|| format!("host {name}: opening its namespace {}", path.display()))?;
        Ok(Self { name: name.into(), namespace: Arc::new(namespace.into()) })
    }

    /// The name given at its making.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside this host and waits for it; a panic in it goes on here.
    /// Sockets made there belong to the host for good and may be carried out.
    ///
    /// # Errors
    ///
    /// What `work` returns, or that the thread could not be started or enter the namespace.
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

    /// Starts a background thread inside this host. It holds the host until it ends.
    ///
    /// # Errors
    ///
    /// That the thread could not be started. That it could not enter the namespace is the thread's
    /// result.
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

    /// A program to be started inside this host; the rest (arguments, streams) is [`Command`]'s.
    ///
    /// It is killed when the thread that starts it ends (PR_SET_PDEATHSIG), so that none outlives
    /// the lab, however that ends.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        start_in_network_namespace(&mut command, Arc::clone(&self.namespace));
        command
    }

    /// Runs a program inside this host to its end and gives its standard output.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] where the program is not installed; [`LabError::System`] with its
    /// standard error where it fails.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        let what = || format!("host {}: {program} {}", self.name, arguments.join(" "));
        let output = match self.command(program).args(arguments).output() {
            // A directory of the search path that may not be entered makes a missing program look
            // forbidden (execvp(3)).
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

    /// Moves the calling thread into this host, for good.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where the kernel refuses, such as after capabilities were dropped.
    pub fn enter(&self) -> Result<(), LabError> {
        match move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network)) {
            // Whoever may not enter any may stay where it is.
            Err(Errno::PERM) if self.is_here() => Ok(()),
            entered => entered.context(|| format!("host {}: entering its namespace", self.name)),
        }
    }

    /// Is the calling thread in it?
    fn is_here(&self) -> bool {
        let (here, there) = (stat("/proc/thread-self/ns/net"), fstat(&self.namespace));
        here.is_ok_and(|here| {
            there.is_ok_and(|there| (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
        })
    }

    fn thread_name(&self) -> String {
        // The kernel keeps 15 bytes of a thread's name; Rust refuses a NUL in it.
        format!("lab:{}", self.name.replace('\0', "?"))
    }
}

impl AsFd for Host {
    /// The namespace, as `setns(2)` and `IFLA_NET_NS_FD` take it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}
