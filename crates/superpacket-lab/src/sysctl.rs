//! Settings of a host that live in files: sysctls, and the sysfs tree of its interfaces.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::{Context, LabError};
use crate::host::Host;

impl Host {
    /// Reads a setting below `/proc/sys` as this host has it, such as
    /// `net/ipv4/tcp_congestion_control` (or with dots).
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there is none, or it may not be read.
    pub fn sysctl(&self, name: &str) -> Result<String, LabError> {
        let path = sysctl_path(name);
        let text: String = self.run(|| fs::read_to_string(&path).context(|| self.setting(name)))?;
        Ok(text.trim().to_owned())
    }

    /// Writes a setting below `/proc/sys` of this host.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there is none, or it may not be written, or the value is refused.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), LabError> {
        let path = sysctl_path(name);
        self.run(|| fs::write(&path, value).context(|| format!("{} = {value}", self.setting(name))))
    }

    /// Reads a file of this host's sysfs, such as `class/net/eth0/queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where sysfs may not be mounted, or there is no such file.
    pub fn sysfs(&self, path: &str) -> Result<String, LabError> {
        self.run(|| {
            let mut text = String::new();
            self.open_sysfs(path, OFlags::RDONLY)?
                .read_to_string(&mut text)
                .context(|| self.setting(path))?;
            Ok(text.trim().to_owned())
        })
    }

    /// Writes a file of this host's sysfs, such as `1` to `class/net/eth0/queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where sysfs may not be mounted, there is no such file, or the value is
    /// refused.
    pub fn set_sysfs(&self, path: &str, value: &str) -> Result<(), LabError> {
        self.run(|| {
            let mut file = self.open_sysfs(path, OFlags::WRONLY)?;
            file.write_all(value.as_bytes()).context(|| format!("{} = {value}", self.setting(path)))
        })
    }

    /// A sysfs shows the network namespace of whoever mounts it. It is mounted nowhere: only a
    /// descriptor holds it.
    fn open_sysfs(&self, path: &str, access: OFlags) -> Result<fs::File, LabError> {
        let mounted = || -> rustix::io::Result<fs::File> {
            let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let tree = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            Ok(openat(&tree, path, access | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        mounted().context(|| self.setting(path))
    }

    fn setting(&self, name: &str) -> String {
        format!("host {}: {name}", self.name())
    }
}

/// `net.ipv4.ip_forward` and `net/ipv4/ip_forward` are the same; with slashes, a name may hold dots
/// (`eth0.5`).
fn sysctl_path(name: &str) -> PathBuf {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    PathBuf::from("/proc/sys").join(relative)
}
