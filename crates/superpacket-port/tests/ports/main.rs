//! Tests of live ports, between network namespaces.
#![cfg(target_os = "linux")]

#[path = "../support/cable.rs"]
mod cable;
#[path = "../support/frames.rs"]
mod frames;
mod packet;
mod replay;
#[path = "../support/mod.rs"]
mod support;
mod tap;
#[path = "../../src/without_memory.rs"]
mod without_memory;
mod xdp;
