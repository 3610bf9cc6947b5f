//! Traffic generators in the manner of netperf: kernel sockets on two hosts, with measured CPU
//! times, and optionally a check of every byte.

mod bulk;
mod bulk_direction;
mod flow;
mod gate;
mod latency;
mod poller;
mod report;
mod settings;
mod socket;
mod source;
mod transaction_endpoint;
mod transactions;
mod udp;

pub use bulk::{Direction, TcpBulk};
pub use flow::Receive;
pub use latency::Latency;
pub(crate) use report::per_second;
pub use report::{BulkReport, DirectionReport, FlowReport, TransactionReport, service_demand};
pub use settings::{Pinning, Route, TcpOptions, Until};
pub use source::{PatternFile, Source};
pub use transactions::TcpTransactions;
pub use udp::{UdpBulk, UdpReport};
