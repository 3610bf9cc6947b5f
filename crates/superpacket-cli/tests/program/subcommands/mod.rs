//! The commands that work on files, as a user runs them.

mod analyze;
mod captures;
mod check;
mod coalesce;
#[cfg(target_os = "linux")]
mod documentation;
#[cfg(unix)]
mod extcap;
#[cfg(unix)]
mod files;
mod filter;
mod flows;
mod gro_table;
#[cfg(unix)]
mod growing;
#[cfg(unix)]
mod live;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(unix)]
mod network;
mod options;
#[cfg(target_os = "linux")]
mod other_users;
mod pages;
mod program;
mod segment;
mod steer;
#[cfg(target_os = "linux")]
mod terminal;
mod verify;
