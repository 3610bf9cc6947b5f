//! Drops privileges: switches to another user, keeps only the necessary capabilities, and prevents
//! the process from regaining others.

use std::io;

use nix::unistd::User;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use superpacket_port::{PortKind, PortSpec};

/// The reason why privileges could not be dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// There is no user with this name or number.
    #[error("user {name:?}: there is no such user")]
    NoUser {
        /// The name or number that was looked up.
        name: String,
    },
    /// A system call failed.
    #[error("user {name:?}: {action}: {source}")]
    System {
        /// Name of the user to whom the process was to switch.
        name: String,
        /// What was being done when the call failed, with the name of the system call.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// A user account that a process can switch to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: String,
    user: Uid,
    group: Gid,
}

impl Account {
    /// Looks up a user account by its name or number.
    ///
    /// # Errors
    /// [`PrivilegeError::NoUser`] if the user does not exist; [`PrivilegeError::System`] if the
    /// look-up fails.
    pub fn find(name: &str) -> Result<Self, PrivilegeError> {
        let failed = |errno: nix::Error| PrivilegeError::System {
            name: name.to_owned(),
            action: "getpwnam",
            source: errno.into(),
        };
        let found = match name.parse() {
            Ok(number) => User::from_uid(nix::unistd::Uid::from_raw(number)),
            Err(_) => User::from_name(name),
        };
        let user = found
            .map_err(failed)?
            .ok_or_else(|| PrivilegeError::NoUser { name: name.to_owned() })?;
        Ok(Account {
            name: name.to_owned(),
            user: Uid::from_raw(user.uid.as_raw()),
            group: Gid::from_raw(user.gid.as_raw()),
        })
    }

    /// Returns the account's user ID.
    pub fn user(&self) -> Uid {
        self.user
    }

    /// Returns the ID of the account's primary group.
    pub fn group(&self) -> Gid {
        self.group
    }

    /// Switches this thread, and the threads that it starts later, to this account. Of its
    /// capabilities, the thread keeps only those in `keep`.
    ///
    /// The order of the steps follows capabilities(7): the permitted set is kept while the user
    /// changes, and reduced afterwards. `no_new_privs` then prevents set-user-ID programs from
    /// regaining privileges.
    ///
    /// # Errors
    /// [`PrivilegeError::System`] if a step is not permitted. Changing the user or the groups
    /// requires root, or CAP_SETUID and CAP_SETGID. A thread that already has this user, this group
    /// and no other groups requires neither. After an error some privileges may be gone, so the
    /// thread should end.
    pub fn become_with(&self, keep: CapabilitySet) -> Result<(), PrivilegeError> {
        let system = |action| {
            move |errno: Errno| PrivilegeError::System {
                name: self.name.clone(),
                action,
                source: errno.into(),
            }
        };
        let held = rustix::thread::capabilities(None).map_err(system("capget"))?;
        // In a container, the process may have only some of the capabilities. The ports must then
        // work with these.
        let keep = keep & held.permitted;
        rustix::thread::set_keep_capabilities(true).map_err(system("prctl(PR_SET_KEEPCAPS)"))?;
        // Supplementary groups grant access too, so they are dropped even if the user stays the
        // same. A thread that has none needs no privilege for this.
        let groups = rustix::process::getgroups().map_err(system("getgroups"))?;
        if groups.iter().any(|group| *group != self.group) {
            rustix::thread::set_thread_groups(&[])
                .map_err(system("giving up other groups (setgroups)"))?;
        }
        rustix::thread::set_thread_res_gid(self.group, self.group, self.group)
            .map_err(system("setresgid"))?;
        rustix::thread::set_thread_res_uid(self.user, self.user, self.user)
            .map_err(system("setresuid"))?;
        rustix::thread::clear_ambient_capability_set()
            .map_err(system("prctl(PR_CAP_AMBIENT_CLEAR_ALL)"))?;
        let sets = CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).map_err(system("capset"))?;
        rustix::thread::set_keep_capabilities(false).map_err(system("prctl(PR_SET_KEEPCAPS)"))?;
        rustix::thread::set_no_new_privs(true).map_err(system("prctl(PR_SET_NO_NEW_PRIVS)"))
    }
}

/// Returns the capabilities that are needed to open these ports again.
pub fn needed<'a>(ports: impl IntoIterator<Item = &'a PortSpec>) -> CapabilitySet {
    ports.into_iter().fold(CapabilitySet::empty(), |all, port| {
        let own = match port.kind() {
            // The virtio header and the buffer sizes need NET_ADMIN; the packet socket needs
            // NET_RAW.
            PortKind::Packet => CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW,
            // Memory shared with the kernel is locked, and exceeds the usual RLIMIT_MEMLOCK without
            // IPC_LOCK.
            PortKind::Xdp => {
                CapabilitySet::NET_ADMIN
                    | CapabilitySet::NET_RAW
                    | CapabilitySet::BPF
                    | CapabilitySet::IPC_LOCK
            }
            PortKind::Tap | PortKind::Tun => CapabilitySet::NET_ADMIN,
            _ => CapabilitySet::empty(),
        };
        all | own | port.inner().map_or(CapabilitySet::empty(), |inner| needed([inner]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_need_what_the_documentation_says() {
        let needed = |text: &str| needed([&text.parse::<PortSpec>().expect(text)]);
        let socket = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        assert_eq!(needed("packet:eth0"), socket);
        assert_eq!(
            needed("nic:page=4k@xdp:eth0"),
            socket | CapabilitySet::BPF | CapabilitySet::IPC_LOCK
        );
        assert_eq!(needed("tap:tap0"), CapabilitySet::NET_ADMIN);
        assert_eq!(needed("pcap:in.pcap"), CapabilitySet::empty());
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let root = Account::find("root").expect("there is root");
        assert!(root.user().is_root() && root.group().is_root());
        assert_eq!(Account::find("0").expect("by number").user(), root.user());
        let error = Account::find("nobody-has-this-name").expect_err("no user");
        assert!(error.to_string().contains("nobody-has-this-name"), "{error}");
    }

    /// Returns fields of a thread's `/proc` status: its four user IDs (real, effective, saved, file
    /// system), its permitted and effective capabilities, and `NoNewPrivs`.
    fn status(thread: std::num::NonZeroI32) -> (String, String, String) {
        let field = |key| field(thread, key);
        (field("Uid:"), format!("{} {}", field("CapPrm:"), field("CapEff:")), field("NoNewPrivs:"))
    }

    #[test]
    fn groups_are_given_up_even_where_the_user_is_the_same() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "only root can change its groups");
            eprintln!("SKIPPED: only root can change its groups");
            return;
        }
        let other = Gid::from_raw(12_345);
        let account = |number| Account {
            name: "same".into(),
            user: Uid::from_raw(number),
            group: Gid::from_raw(number),
        };
        // A separate thread drops privileges, so that the other tests of this process keep theirs.
        let root = std::thread::spawn(move || {
            rustix::thread::set_thread_groups(&[other]).expect("root may");
            rustix::thread::set_thread_res_gid(other, other, other).expect("root may");
            account(0).become_with(CapabilitySet::empty()).expect("root may");
            groups()
        });
        assert_eq!(root.join().expect("no panic"), ("0 0 0 0".to_owned(), String::new()));
        // A thread without privileges is refused as long as it has groups that it cannot drop.
        let nobody = std::thread::spawn(move || {
            let Account { user, group, .. } = account(65_534);
            rustix::thread::set_thread_groups(&[other]).expect("root may");
            rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            account(65_534)
                .become_with(CapabilitySet::empty())
                .expect_err("it keeps a group")
                .to_string()
        });
        let said = nobody.join().expect("no panic");
        assert!(
            said.starts_with(
                "user \"same\": giving up other groups (setgroups): Operation not permitted"
            ),
            "{said}"
        );
        let alone = std::thread::spawn(move || {
            let Account { user, group, .. } = account(65_534);
            rustix::thread::set_thread_groups(&[group]).expect("root may");
            rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            account(65_534)
                .become_with(CapabilitySet::empty())
                .expect("nothing is left to be given up");
            groups().0
        });
        assert_eq!(alone.join().expect("no panic"), "65534 65534 65534 65534");
    }

    /// Returns fields of this thread's `/proc` status: its four group IDs (real, effective, saved,
    /// file system), and its supplementary groups.
    fn groups() -> (String, String) {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        (field(thread, "Gid:"), field(thread, "Groups:"))
    }

    /// Returns one field of what `/proc` says about a thread.
    fn field(thread: std::num::NonZeroI32, key: &str) -> String {
        let status =
            std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("is there");
        let line = status.lines().find(|line| line.starts_with(key)).expect(key);
        line[key.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_thread_and_its_children_keep_two_capabilities_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "only root can change its user");
            eprintln!("skipped: only root can change its user");
            return;
        }
        let account = Account {
            name: "nobody".into(),
            user: Uid::from_raw(65_534),
            group: Gid::from_raw(65_534),
        };
        // A separate thread drops privileges, so that the other tests of this process keep theirs.
        let (own, tried) = std::thread::spawn(move || {
            account
                .become_with(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW)
                .expect("root may");
            // The child's status is read while it runs.
            let ((started, child), (end, ended)) =
                (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
            let living = std::thread::spawn(move || {
                started.send(rustix::thread::gettid().as_raw_nonzero()).expect("the parent waits");
                ended.recv().expect_err("the other end is dropped")
            });
            let found =
                [rustix::thread::gettid().as_raw_nonzero(), child.recv().expect("it starts")]
                    .map(status);
            drop(end);
            living.join().expect("ends");
            (found, rustix::thread::set_thread_uid(Uid::ROOT))
        })
        .join()
        .expect("no panic");
        for (users, capabilities, no_new_privs) in own {
            assert_eq!(users, "65534 65534 65534 65534");
            // CAP_NET_ADMIN is 12, CAP_NET_RAW 13.
            assert_eq!(capabilities, "0000000000003000 0000000000003000");
            assert_eq!(no_new_privs, "1");
        }
        assert_eq!(tried, Err(Errno::PERM), "no way back");
    }
}
