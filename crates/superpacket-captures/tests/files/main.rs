//! Capture files: reading, writing, and damaged input.

mod blocks;
#[path = "../bytes/mod.rs"]
mod bytes;
mod captures;
mod damage;
mod formats;
#[cfg(target_os = "linux")]
mod modes;
mod parts;
mod waiting;
mod writing;
