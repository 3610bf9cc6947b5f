//! The bridge's log: structured, to standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use super::arguments::LogFormat;
use crate::failure::Failure;

/// Logs from now on what `filter` lets through: a level, or levels by module (`superpacket_bridge=debug,info`).
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let filter: Targets = filter.parse().map_err(|error| Failure::Usage(format!("--log {filter:?}: {error}")))?;
    let lines = fmt::layer().with_writer(stderr);
    let started: Result<(), TryInitError> = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(stderr().is_terminal()).with_target(false);
            tracing_subscriber::registry().with(lines.with_filter(filter)).try_init()
        }
        LogFormat::Json => tracing_subscriber::registry().with(lines.json().flatten_event(true).with_filter(filter)).try_init(),
    };
    started.map_err(|error| Failure::Bridge(format!("the log cannot be started: {error}")))
}
