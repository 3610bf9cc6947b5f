//! A packet reaches its flow in one of two ways: in a run of packets that come in sequence, or by
//! the rules one by one. The run is a second writing of these rules, so both ways must give the
//! same.
//!
//! A packet of several buffers never joins in a run. So each stream is received as it is, and once
//! more with an empty buffer behind each packet: what comes out must be the same packets, in the
//! same order, for the same reasons.

mod acks;
mod change;
mod compare;
mod coverage;
mod directed;
mod generated;
mod traffic;
