//! TUN devices of Linux.

mod interface;
mod ioctl;
mod queue;
mod tun;

pub use queue::Queue;
pub use tun::{Builder, OpenError, Tun};
