//! Network namespaces that live as long as a test, for hosts and a bridge between them, joined by
//! veth pairs.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A network namespace, inside a user namespace if the test does not run as root. It ends with its
/// only process.
pub struct Namespace {
    holder: Child,
    flags: &'static [&'static str],
}

impl Namespace {
    /// Creates a namespace. Returns `None`, with a message, if the machine forbids it; in CI that
    /// is a failure.
    pub fn new() -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        let flags: &[&str] = if root { &["-n"] } else { &["-n", "-U"] };
        let mut command = Command::new("unshare");
        command.args(if root { &["-n"][..] } else { &["-n", "-U", "-r"] });
        let holder = command
            .args(["sleep", "600"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare (util-linux) is there");
        let namespace = Namespace { holder, flags };
        let own = std::fs::read_link("/proc/self/ns/net").expect("Linux");
        let path = format!("/proc/{}/ns/net", namespace.holder.id());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            if std::fs::read_link(&path).is_ok_and(|link| link != own)
                && namespace.run("ip", &["link", "set", "lo", "up"]).status.success()
            {
                return Some(namespace);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(std::env::var_os("CI").is_none(), "network namespaces are forbidden here");
        eprintln!("SKIPPED: network namespaces are forbidden here");
        None
    }

    /// Returns the ID of the process that holds the namespace.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Returns a command that runs in the namespace.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string()]).args(self.flags);
        if self.flags.len() > 1 {
            command.arg("--preserve-credentials");
        }
        command.arg(program.as_ref()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("nsenter (util-linux) is there")
    }

    /// Runs `ip`, which must succeed.
    pub fn ip(&self, arguments: &str) {
        let output = self.run("ip", &arguments.split_whitespace().collect::<Vec<_>>());
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Creates a host whose `eth0` has this address; the other end, `name`, is in this namespace.
    pub fn host(&self, name: &str, address: &str) -> Option<Namespace> {
        // Children of one user namespace, so that an interface can be moved between them.
        let inner = self
            .command("unshare")
            .args(["-n", "sleep", "600"])
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare is there");
        let host = Namespace { holder: inner, flags: self.flags };
        let own = std::fs::read_link(format!("/proc/{}/ns/net", self.holder.id())).expect("lives");
        let path = format!("/proc/{}/ns/net", host.holder.id());
        let started = Instant::now();
        // Until unshare has run, the process is still in our namespace or in the test's.
        let test = std::fs::read_link("/proc/self/ns/net").expect("Linux");
        while std::fs::read_link(&path).is_ok_and(|link| link == own || link == test) {
            assert!(started.elapsed() < Duration::from_secs(5), "unshare");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.ip(&format!("link add {name} type veth peer name eth0 netns {}", host.holder.id()));
        self.ip(&format!("link set {name} up"));
        host.ip(&format!("addr add {address} dev eth0"));
        host.ip("link set eth0 up");
        Some(host)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
