//! The commands that work on files, as a user runs them.

mod analyze;
#[path = "../support/browser.rs"]
mod browser;
mod captures;
mod check;
mod coalesce;
#[cfg(unix)]
mod files;
mod gro_table;
#[cfg(target_os = "linux")]
mod memory;
mod options;
mod pages;
mod program;
#[cfg(target_os = "linux")]
mod readme;
#[cfg(target_os = "linux")]
#[path = "../support/terminal.rs"]
mod screen;
mod segment;
mod steer;
#[path = "../support/mod.rs"]
mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod verify;
