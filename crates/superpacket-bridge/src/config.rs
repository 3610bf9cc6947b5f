//! The file that a bridge reads: `bridge.toml`. `docs/bridge.toml` is an example of everything in
//! it.

mod written;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use self::written::Written;
use crate::reload::OnReload;
use crate::settings::BridgeSettings;

/// The longest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The bridge.
    pub bridge: BridgeSettings,
    /// Where it is controlled.
    pub control: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The user that it becomes after it has opened its ports.
    pub user: Option<String>,
    /// What reading it again does with what commands have changed.
    pub on_reload: Option<OnReload>,
}

/// A file could not be read, or says something that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It could not be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("{file}:{line}: {problem}, in: {text}")]
    Line {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it; names the key.
        problem: String,
        /// The line as it is written.
        text: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
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

    /// Reads the text of a file that errors call `file`.
    ///
    /// # Errors
    /// [`ConfigError::Line`].
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let source = Source { text, file };
        let written: Written = toml::from_str(text).map_err(|error| {
            source.wrong(&error.span().unwrap_or_default(), error.message().trim_end())
        })?;
        written.check(&source)
    }
}

/// The most characters of a line that an error shows.
const SHOWN: usize = 120;

/// A text, for errors that point into it.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
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
