//! Tests of the program as a user runs it. The commands compute while a run of the lab waits.
//! Bridges are tested by another program (`live`), because a lab beside them would take the CPU
//! time that they need to lose no packet. Tests start in the order of their modules' names: the lab
//! first, since one run of it takes longest.

#[cfg(target_os = "linux")]
mod lab;
#[cfg(target_os = "linux")]
mod load;
mod subcommands;
#[path = "../support/mod.rs"]
mod support;
