//! Tests of vhost-user ports, with guests of our own: well-behaved ones and hostile ones.
#![cfg(target_os = "linux")]

mod bench;
#[path = "../support/frames.rs"]
mod frames;
mod guests;
mod hostile;
mod hostile_front_ends;
