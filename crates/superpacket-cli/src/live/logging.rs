//! The bridge's structured log on standard error.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

use crate::failure::Failure;

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line of text per event
    Text,
    /// A JSON object per line
    Json,
}

/// Starts logging. `filter` is a level, or levels by module (`superpacket_bridge=debug,info`).
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = targets(filter)?;
    let lines = fmt::layer().with_writer(stderr);
    let started: Result<(), TryInitError> = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(stderr().is_terminal()).with_target(false);
            tracing_subscriber::registry().with(lines.with_filter(filter)).try_init()
        }
        LogFormat::Json => tracing_subscriber::registry()
            .with(lines.json().flatten_event(true).with_filter(filter))
            .try_init(),
    };
    started.map_err(|error| Failure::Bridge(format!("the log cannot be started: {error}")))
}

/// The levels of a log.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The crates that log; module names begin with them.
const MODULES: [&str; 4] =
    ["superpacket", "superpacket_bridge", "superpacket_daemon", "superpacket_port"];

/// Parses a log filter. Unknown words are refused, because tracing would take them for module names
/// and log only these modules.
fn targets(filter: &str) -> Result<Targets, Failure> {
    let wrong = |word: &str, what: &str, allowed: &[&str]| {
        Err(Failure::Usage(format!(
            "--log {filter}: {word:?} is not a {what}; choose one of {}",
            allowed.join(", ")
        )))
    };
    for part in filter.split(',') {
        let (module, level) =
            part.split_once('=').map_or((None, part), |(module, level)| (Some(module), level));
        if !LEVELS.contains(&level) {
            return wrong(
                level,
                if module.is_some() { "level" } else { "level (of a module: MODULE=LEVEL)" },
                &LEVELS,
            );
        }
        if let Some(module) = module
            && !MODULES.contains(&module.split("::").next().unwrap_or(module))
        {
            return wrong(module, "module that logs", &MODULES);
        }
    }
    filter.parse().map_err(|error| Failure::Usage(format!("--log {filter}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn unknown_words_are_refused_with_the_allowed_ones() {
        for (filter, says) in [
            (
                "inof",
                "\"inof\" is not a level (of a module: MODULE=LEVEL); choose one of off, error, warn, info, debug, trace",
            ),
            ("", "\"\" is not a level"),
            ("info,", "\"\" is not a level"),
            ("superpacket_bridge", "\"superpacket_bridge\" is not a level"),
            ("superpacket_bridge=loud", "\"loud\" is not a level; choose one of off"),
            (
                "superpacket_brigde=debug,info",
                "is not a module that logs; choose one of superpacket, superpacket_bridge, superpacket_daemon, superpacket_port",
            ),
        ] {
            let error = targets(filter).expect_err(filter).to_string();
            assert!(
                error.starts_with(&format!("--log {filter}: ")) && error.contains(says),
                "{error}"
            );
        }
    }

    #[test]
    fn levels_are_for_all_or_for_a_module() {
        let filter =
            targets("superpacket_bridge=debug,superpacket_port=trace,warn").expect("is right");
        assert!(
            filter.would_enable("superpacket_bridge::bridge", &Level::DEBUG)
                && filter.would_enable("superpacket_port", &Level::TRACE)
        );
        assert!(
            !filter.would_enable("superpacket_captures::file", &Level::INFO)
                && filter.would_enable("superpacket", &Level::WARN)
        );
        for level in LEVELS {
            targets(level).expect(level);
        }
    }
}
