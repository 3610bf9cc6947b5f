//! Control of a running bridge over a Unix socket: the server and the client of the protocol that
//! `docs/control.md` describes.
//!
//! Each request and each answer is a line with a JSON object. Only root and the user that the
//! bridge runs as may send requests.

mod answer;
mod client;
mod client_error;
mod monitor;
mod path;
mod request;
mod rps;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod unique;

pub use client::Client;
pub use client_error::ClientError;
pub use monitor::{MonitorCounts, MonitorStream};
pub use path::default_path;
pub use request::{Address, ControlError, ErrorCode, MAX_REQUEST, PROTOCOL, Request, ServedBy};
pub use rps::RpsChange;
pub use server::ControlServer;
pub use socket::{ControlSocket, SocketError};
