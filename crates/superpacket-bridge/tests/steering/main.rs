//! Steering in the bridge, between ports in memory: order, balance, and what happens while all of
//! it is changed.

mod backlog;
mod consumer;
mod hashes;
mod order;
mod queues;
mod rfs;
mod traffic;
mod watched;
