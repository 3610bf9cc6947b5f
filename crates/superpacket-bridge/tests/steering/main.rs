//! Tests of steering in the bridge, between memory ports: order, balance, and changes under load.

mod backlog;
mod consumer;
mod hashes;
mod order;
mod queues;
mod rfs;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
mod watched;
