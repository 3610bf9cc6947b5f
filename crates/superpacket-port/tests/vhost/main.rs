//! Tests of vhost-user ports, with guests of our own: well-behaved ones and hostile ones.
#![cfg(target_os = "linux")]

mod bench;
mod guests;
mod hostile;
mod hostile_front_ends;
#[path = "../../src/without_memory.rs"]
#[expect(dead_code, reason = "only a part is needed here")]
mod without_memory;
