//! The program as a user runs it: while a run of the lab waits, the commands compute. Bridges are
//! tested in a program of their own (`live`): a lab beside them takes the time that they need to
//! lose nothing. Tests begin in the order of their modules' names: those of the lab first, since
//! one run of it takes longer than any command.

#[cfg(target_os = "linux")]
mod lab;
mod subcommands;
#[path = "../support/mod.rs"]
mod support;
