//! The setting `kernel_path`: whether the kernel may forward frames of a port by itself.

use std::fmt;
use std::str::FromStr;

use super::SettingValue;

/// Whether the kernel may forward frames between this port and others without the bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelPathMode {
    /// The kernel forwards frames where it and the port's settings allow it.
    #[default]
    Auto,
    /// As `Auto`, but opening the port fails if the kernel cannot forward its frames.
    On,
    /// The bridge forwards all frames.
    Off,
}

impl KernelPathMode {
    /// The allowed values, for error messages.
    pub(super) const ALLOWED: &str = "auto, on or off";
}

/// Writes `auto`, `on` or `off`.
impl fmt::Display for KernelPathMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            KernelPathMode::Auto => "auto",
            KernelPathMode::On => "on",
            KernelPathMode::Off => "off",
        })
    }
}

/// Parses the format that [`Display`](fmt::Display) writes.
impl FromStr for KernelPathMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(KernelPathMode::Auto),
            "on" => Ok(KernelPathMode::On),
            "off" => Ok(KernelPathMode::Off),
            _ => Err(format!("it is {}, not {text:?}", Self::ALLOWED)),
        }
    }
}

impl From<KernelPathMode> for SettingValue {
    fn from(mode: KernelPathMode) -> Self {
        mode.to_string().as_str().into()
    }
}
