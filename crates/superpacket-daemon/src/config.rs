//! The configuration file of a bridge, `bridge.toml`. `docs/bridge/bridge.toml` is an example with
//! every key.

mod written;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use superpacket_bridge::settings::BridgeSettings;

use self::written::WrittenConfig;
use crate::reload::OnReload;

/// Maximum size of a file in bytes; a longer file is an error.
const MAX_FILE: u64 = 1 << 20;

/// The content of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The settings of the bridge and its ports.
    pub bridge: BridgeSettings,
    /// Path of the control socket, if the file has one.
    pub control: Option<PathBuf>,
    /// Address at which metrics are served over HTTP, if the file has one.
    pub metrics: Option<SocketAddr>,
    /// The user, by name or number, that the process becomes after it has opened its ports.
    pub user: Option<String>,
    /// Whether a reload of the file undoes the changes made by commands.
    pub on_reload: Option<OnReload>,
}

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// Path of the file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line of the file is not valid TOML, or its key or value is not allowed.
    #[error("{file}:{line}: {problem}, in: {text}")]
    Line {
        /// Path of the file.
        file: String,
        /// Number of the line, counted from 1.
        line: usize,
        /// Description of the problem; it names the key.
        problem: String,
        /// The line as it stands in the file, shortened to 120 characters.
        text: String,
    },
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] if the file cannot be read or is too long; [`ConfigError::Line`]
    /// with the line and the key if its content is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::File::open(path).and_then(|opened| {
            let mut text = String::new();
            io::Read::read_to_string(&mut io::Read::take(opened, MAX_FILE + 1), &mut text)?;
            match text.len() as u64 > MAX_FILE {
                true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB")),
                false => Ok(text),
            }
        });
        match text {
            Ok(text) => Config::parse(&text, &file),
            Err(source) => Err(ConfigError::Unreadable { file, source }),
        }
    }

    /// Parses and checks the text of a file. `file` is its name in error messages.
    ///
    /// # Errors
    /// [`ConfigError::Line`] with the line and the key if the content is wrong.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let source = ConfigText { text, file };
        let written: WrittenConfig = toml::from_str(text).map_err(|error| {
            source.wrong(&error.span().unwrap_or_default(), error.message().trim_end())
        })?;
        written.check(&source)
    }
}

/// Maximum number of characters of a line that an error message shows.
const SHOWN: usize = 120;

/// The text of a file and its name, for error messages that point to a line.
struct ConfigText<'a> {
    text: &'a str,
    file: &'a str,
}

impl ConfigText<'_> {
    fn wrong(&self, span: &Range<usize>, problem: impl std::fmt::Display) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count();
        let whole = self.text.lines().nth(line).unwrap_or_default().trim();
        let mut text: String = whole.chars().take(SHOWN).collect();
        if text.len() < whole.len() {
            text.push_str("...");
        }
        ConfigError::Line {
            file: self.file.to_owned(),
            line: line + 1,
            problem: problem.to_string(),
            text,
        }
    }
}

#[cfg(test)]
mod tests;
