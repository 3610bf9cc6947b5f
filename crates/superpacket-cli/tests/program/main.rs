//! The program as a user runs it: while a run of the lab waits, the commands compute. Bridges are
//! tested in a program of their own (`live`): a lab beside them takes the time that they need to
//! lose nothing.

mod commands;
#[cfg(target_os = "linux")]
mod lab;
#[path = "../support/mod.rs"]
mod support;
