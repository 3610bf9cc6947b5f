//! Network namespaces for tests of live ports, bound to the life of a thread.

#![allow(dead_code, reason = "each test binary needs another part of it")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

/// Set in a child process that runs one test in a new user namespace.
const INSIDE: &str = "SUPERPACKET_TEST_INSIDE";

/// Runs a test in this thread, in a new network namespace, which disappears when the thread ends.
/// If the user is not root, the test runs in a child process with a user namespace.
///
/// If the machine does not allow this, the test is skipped with a message. With `CI` set in the
/// environment, it fails instead.
pub fn in_namespace(test: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() && std::env::var_os(INSIDE).is_none() {
        return in_user_namespace();
    }
    match enter_new_namespace() {
        Ok(()) => test(),
        Err(error) => skip(&format!("network namespaces are forbidden: {error}")),
    }
}

fn in_user_namespace() {
    let thread = std::thread::current();
    let name = thread.name().expect("the harness names threads after tests");
    let program = std::env::current_exe().expect("this program");
    let run = |arguments: &[&std::ffi::OsStr]| {
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--net"])
            .args(arguments)
            .env(INSIDE, "1")
            .status()
    };
    if !run(&["true".as_ref()]).is_ok_and(|status| status.success()) {
        return skip("user namespaces are forbidden");
    }
    let status =
        run(&[program.as_ref(), name.as_ref(), "--exact".as_ref(), "--nocapture".as_ref()])
            .expect("it ran before");
    assert!(status.success(), "{name} failed in its user namespace");
}

/// Reports that a test was skipped, and why.
///
/// # Panics
/// If `CI` is set in the environment.
pub fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED, NOTHING WAS TESTED: {reason}");
}

/// Reports that a test was skipped because the kernel lacks a feature. In CI too this is no
/// failure, since the kernel cannot be changed there.
#[allow(dead_code, reason = "not all tests need devices that a kernel may lack")]
pub fn not_built_in(what: &str) {
    eprintln!("SKIPPED, NOTHING WAS TESTED: this kernel was built without {what}");
}

fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: the thread gets its own network namespace; no memory, files or signal handlers of
    // other threads are concerned.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    ip("link set lo up");
    Ok(())
}

/// Runs `ip` with these arguments in this thread's namespace.
///
/// # Panics
/// If it fails, with what it said.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns whether the kernel supports virtual devices of this type (`vlan`, `vxlan`), by creating
/// one.
pub fn has_link_type(kind: &str) -> bool {
    let more = match kind {
        "vlan" => "id 4000",
        "vxlan" => "id 4000 dstport 4789",
        _ => "",
    };
    let arguments = format!("link add link lo name probe0 type {kind} {more}");
    let made = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .expect("iproute2 is installed")
        .status
        .success();
    if made {
        ip("link del probe0");
    }
    made
}

/// Returns whether this thread's namespace has an interface of this name.
pub fn interface_exists(name: &str) -> bool {
    Command::new("ip")
        .args(["link", "show", "dev", name])
        .output()
        .expect("iproute2 is installed")
        .status
        .success()
}

/// Stops interfaces created later in this thread's namespace from sending packets by themselves.
pub fn quiet() {
    for scope in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1")
            .expect("the namespace is ours");
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// A host for tests: a thread in a new network namespace, which runs tasks in order.
pub struct Host {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    namespace: String,
}

impl Host {
    /// Creates a host with a loopback interface that is up. The caller is inside [`in_namespace`].
    pub fn new() -> Self {
        let (tasks, received) = channel::<Task>();
        let (ready, made) = channel();
        let thread = std::thread::spawn(move || {
            enter_new_namespace().expect("the test's own namespace could be made");
            ready.send(gettid()).expect("somebody waits");
            received.iter().for_each(|task| task());
        });
        let id = made.recv().expect("the host has started");
        let namespace = format!("/proc/{}/task/{}/ns/net", std::process::id(), id.as_raw_nonzero());
        Host { tasks: Some(tasks), thread: Some(thread), namespace }
    }

    /// Starts `task` on the host. The result can be obtained from the returned value.
    pub fn start<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        let (sender, result) = channel();
        let task = Box::new(move || drop(sender.send(task())));
        self.tasks.as_ref().expect("open until dropped").send(task).expect("the host lives");
        Running(result)
    }

    /// Runs `task` on the host and waits for its result.
    pub fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(task).wait()
    }

    /// Runs `ip` on the host.
    pub fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments));
    }

    /// Returns a path that names the host's namespace, for `ip link set ... netns PATH`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The pending result of a task.
pub struct Running<T>(std::sync::mpsc::Receiver<T>);

impl<T> Running<T> {
    /// Waits for the result.
    ///
    /// # Panics
    /// If the task panicked.
    pub fn wait(self) -> T {
        self.0.recv().expect("the task did not panic")
    }

    /// Returns the result if the task has finished, otherwise `self`.
    pub fn try_wait(self) -> Result<T, Self> {
        match self.0.try_recv() {
            Ok(value) => Ok(value),
            Err(std::sync::mpsc::TryRecvError::Empty) => Err(self),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => panic!("the task panicked"),
        }
    }
}

/// A packet socket on an interface of this thread's namespace, which sends and receives whole
/// frames.
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens the socket. Its frames begin with an Ethernet header or, on a TUN device, with an IP
    /// header.
    pub fn open(interface: &str) -> Self {
        const ETH_P_ALL: u16 = 3;
        let protocol = i32::from(ETH_P_ALL.to_be());
        // SAFETY: the call takes integers only.
        let fd =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
        assert!(fd >= 0, "packet socket: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is new, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = std::ffi::CString::new(interface).expect("no zero in a name");
        // SAFETY: the name is a string that ends with a zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(index, 0, "{interface} is there");
        // SAFETY: all zeros are valid for this structure of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        (address.sll_family, address.sll_protocol, address.sll_ifindex) =
            (libc::AF_PACKET as u16, ETH_P_ALL.to_be(), index as i32);
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address lives through the call and has this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "bind: {}", io::Error::last_os_error());
        let socket = PacketSocket(socket);
        socket.option(23, 1); // PACKET_IGNORE_OUTGOING
        socket
    }

    fn option(&self, name: i32, value: i32) {
        // SAFETY: the value lives through the call and has this length.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                name,
                (&raw const value).cast(),
                4,
            )
        };
        assert_eq!(set, 0, "setsockopt: {}", io::Error::last_os_error());
    }

    /// Sends a frame out of the interface.
    pub fn send(&self, frame: &[u8]) {
        assert_eq!(
            rustix::net::send(&self.0, frame, rustix::net::SendFlags::empty()),
            Ok(frame.len())
        );
    }

    /// Returns the next frame that the interface receives; waits 5 seconds at most.
    pub fn receive(&self) -> Vec<u8> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(
            poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)),
            Ok(1),
            "no frame within 5 seconds"
        );
        let mut bytes = vec![0; 1 << 17];
        let (length, _) =
            rustix::net::recv(&self.0, &mut bytes[..], rustix::net::RecvFlags::empty())
                .expect("there is one");
        bytes.truncate(length);
        bytes
    }
}
