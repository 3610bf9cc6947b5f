#![doc = include_str!("../README.md")]

mod host;
mod peers;

pub use host::{FromHost, ToHost, split};
pub use peers::{FromPeers, Sockets, ToPeers};
