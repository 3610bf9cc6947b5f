//! Settings of a host that the kernel presents as files: sysctls, and the sysfs tree of its
//! interfaces.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::{Context, LabError};
use crate::host::Host;

impl Host {
    /// Reads a sysctl of this host, such as `net/ipv4/tcp_congestion_control` (dots are accepted
    /// too).
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if it does not exist or may not be read.
    pub fn sysctl(&self, name: &str) -> Result<String, LabError> {
        let path = sysctl_path(name);
        let text: String = self.run(|| fs::read_to_string(&path).context(|| self.setting(name)))?;
        Ok(text.trim().to_owned())
    }

    /// Writes a sysctl of this host.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if it does not exist, may not be written, or rejects the value.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), LabError> {
        let path = sysctl_path(name);
        self.run(|| fs::write(&path, value).context(|| format!("{} = {value}", self.setting(name))))
    }

    /// Reads a file of this host's sysfs, such as `class/net/eth0/queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if sysfs may not be mounted or the file does not exist.
    pub fn sysfs(&self, path: &str) -> Result<String, LabError> {
        self.run(|| {
            let mut text = String::new();
            self.open_sysfs(path, OFlags::RDONLY)?
                .read_to_string(&mut text)
                .context(|| self.setting(path))?;
            Ok(text.trim().to_owned())
        })
    }

    /// Writes a file of this host's sysfs, such as `class/net/eth0/queues/rx-0/rps_cpus`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if sysfs may not be mounted, the file does not exist, or it rejects the
    /// value.
    pub fn set_sysfs(&self, path: &str, value: &str) -> Result<(), LabError> {
        self.run(|| {
            let mut file = self.open_sysfs(path, OFlags::WRONLY)?;
            file.write_all(value.as_bytes()).context(|| format!("{} = {value}", self.setting(path)))
        })
    }

    /// Opens a file in a newly mounted sysfs, which shows the network namespace of the mounting
    /// thread. It has no mount point: only the returned descriptor holds the file system.
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

/// Returns the path of a sysctl under `/proc/sys`. In a name without a slash, dots are separators;
/// in a name with slashes, a component may contain dots (`eth0.5`).
fn sysctl_path(name: &str) -> PathBuf {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    PathBuf::from("/proc/sys").join(relative)
}
