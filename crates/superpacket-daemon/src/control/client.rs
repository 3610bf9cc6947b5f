//! The client of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;
use superpacket_bridge::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorSettings};
use superpacket_bridge::report::{
    MdbReport, PortFeatures, PortReport, PortRps, PortStats, SteeringReport,
};
use superpacket_bridge::settings::{PortChange, SettingValue};
use superpacket_bridge::vlan::{PortVlanReport, VlanRange, VlanReport};

use super::client_error::ClientError;
use super::monitor::MonitorStream;
use super::request::Reply;
use super::{Address, ErrorCode, Request, RpsChange, ServedBy};
use crate::monitor::MonitorReport;

/// Maximum time that a bridge may take to accept a connection, to read a request, or to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of an answer in bytes, far more than the answer about 1,000 ports needs.
const MAX_REPLY: u64 = 16 << 20;

/// Connects to a UNIX socket. Fails with `TimedOut` if the listen queue stays full, as that of a
/// stopped bridge (SIGSTOP) may.
pub(super) fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(timeout))?;
    match connect(&stream, &address) {
        Ok(()) => Ok(stream),
        Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the bridge accepts no connection"))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// A connection to a running bridge.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the bridge whose control socket has this path.
    ///
    /// # Errors
    /// [`ClientError`] if the socket does not exist, nobody listens, or permission is missing.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let whole = || path.to_owned();
        let stream = connect_within(path, TIMEOUT).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ClientError::Absent { path: whole() },
            io::ErrorKind::ConnectionRefused => ClientError::Dead { path: whole() },
            io::ErrorKind::PermissionDenied => ClientError::Denied { path: whole() },
            _ => ClientError::Io { path: whole(), source: error },
        })?;
        let bounded = stream
            .set_read_timeout(Some(TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
        bounded.map_err(|source| ClientError::Io { path: whole(), source })?;
        Ok(Client { path: whole(), stream: BufReader::new(stream) })
    }

    /// Returns the path of the control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the bridge refuses the request; other errors if the exchange
    /// fails.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        let malformed =
            |problem: String| ClientError::Malformed { path: self.path.clone(), problem };
        let failed = |source: io::Error| ClientError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_vec(request).map_err(|error| malformed(error.to_string()))?;
        line.push(b'\n');
        // If this user has no permission, the server sends a refusal and closes. The refusal can be
        // read although sending may have failed.
        let sent = self.stream.get_mut().write_all(&line);
        let mut reply = Vec::new();
        let read = self.stream.by_ref().take(MAX_REPLY).read_until(b'\n', &mut reply);
        if !reply.ends_with(b"\n") {
            sent.map_err(failed)?;
            read.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => {
                    failed(io::Error::new(io::ErrorKind::TimedOut, "the bridge does not answer"))
                }
                _ => failed(error),
            })?;
            return Err(match reply.is_empty() {
                true => failed(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the bridge has closed the connection",
                )),
                false => malformed(format!("it ends after {} bytes, within a line", reply.len())),
            });
        }
        match serde_json::from_slice(&reply) {
            Ok(Reply::Ok(value)) => Ok(value),
            Ok(Reply::Error(refusal)) if refusal.code == ErrorCode::Forbidden => {
                Err(ClientError::Denied { path: self.path.clone() })
            }
            Ok(Reply::Error(refusal)) => Err(ClientError::Refused(refusal)),
            Err(error) => Err(malformed(error.to_string())),
        }
    }
}

/// Methods for the individual requests. Their errors are those of [`ask`](Client::ask).
impl Client {
    /// Returns the versions of the protocol and of the program, and the bridge's process ID.
    pub fn version(&mut self) -> Result<ServedBy, ClientError> {
        self.ask(&Request::Version {})
    }

    /// Returns a summary of each port, or only of `port`.
    pub fn ports(&mut self, port: Option<&str>) -> Result<Vec<PortReport>, ClientError> {
        self.ask(&Request::Ports { port: port.map(str::to_owned) })
    }

    /// Returns the offloads of each port, or only of `port`.
    pub fn features(&mut self, port: Option<&str>) -> Result<Vec<PortFeatures>, ClientError> {
        self.ask(&Request::Features { port: port.map(str::to_owned) })
    }

    /// Returns the counters of each port, or only of `port`.
    pub fn stats(&mut self, port: Option<&str>) -> Result<Vec<PortStats>, ClientError> {
        self.ask(&Request::Stats { port: port.map(str::to_owned) })
    }

    /// Switches an offload of a port, by its name in ethtool. `force` allows
    /// `large-receive-offload` although packets are forwarded.
    pub fn set_feature(
        &mut self,
        port: &str,
        feature: &str,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, ClientError> {
        self.ask(&Request::SetFeature {
            port: port.to_owned(),
            feature: feature.to_owned(),
            on,
            force,
        })
    }

    /// Adds and opens a port, given by its port string.
    pub fn add_port(&mut self, port: &str) -> Result<PortReport, ClientError> {
        self.ask(&Request::AddPort { port: port.to_owned() })
    }

    /// Changes options of a port's string and settings of the port: all of them, or none if one is
    /// refused.
    pub fn set_port(&mut self, port: &str, change: &PortChange) -> Result<PortReport, ClientError> {
        let PortChange { options, settings } = change.clone();
        self.ask(&Request::SetPort { port: port.to_owned(), options, settings })
    }

    /// Closes and removes a port, and returns its last summary.
    pub fn remove_port(&mut self, port: &str) -> Result<PortReport, ClientError> {
        self.ask(&Request::DelPort { port: port.to_owned() })
    }

    /// Returns the selected entries of the address table that follow `after`. There are at most
    /// `most` entries, and at most [`MOST_LISTED`](superpacket_bridge::fdb::MOST_LISTED).
    pub fn fdb(
        &mut self,
        filter: &FdbFilter,
        after: Option<&FdbEntry>,
        most: usize,
    ) -> Result<FdbPage, ClientError> {
        let FdbFilter { port, vlan, is_static } = filter.clone();
        let after = after.map(|entry| Address { mac: entry.mac.clone(), vlan: entry.vlan });
        self.ask(&Request::Fdb { port, vlan, is_static, after, most: Some(most) })
    }

    /// Adds a static entry to the address table.
    pub fn add_static_entry(
        &mut self,
        port: &str,
        station: Station,
    ) -> Result<FdbEntry, ClientError> {
        let vlan = Some(station.vlan).filter(|&vlan| vlan != 0);
        self.ask(&Request::AddFdb {
            port: port.to_owned(),
            mac: station.mac(),
            vlan,
            replace: false,
        })
    }

    /// Adds a static entry to the address table, replacing an existing entry of the same station.
    pub fn replace_static_entry(
        &mut self,
        port: &str,
        station: Station,
    ) -> Result<FdbEntry, ClientError> {
        let vlan = Some(station.vlan).filter(|&vlan| vlan != 0);
        self.ask(&Request::AddFdb {
            port: port.to_owned(),
            mac: station.mac(),
            vlan,
            replace: true,
        })
    }

    /// Deletes a static or learned entry of the address table.
    pub fn delete_entry(&mut self, port: &str, station: Station) -> Result<FdbEntry, ClientError> {
        let vlan = Some(station.vlan).filter(|&vlan| vlan != 0);
        self.ask(&Request::DelFdb { port: port.to_owned(), mac: station.mac(), vlan })
    }

    /// Deletes learned addresses, and returns how many.
    pub fn flush_fdb(&mut self, filter: &FdbFilter) -> Result<usize, ClientError> {
        let FdbFilter { port, vlan, .. } = filter.clone();
        self.ask(&Request::FlushFdb { port, vlan })
    }

    /// Returns the VLANs of each port, or only of `port`.
    pub fn vlans(&mut self, port: Option<&str>) -> Result<VlanReport, ClientError> {
        self.ask(&Request::Vlan { port: port.map(str::to_owned) })
    }

    /// Adds a port to VLANs, or changes its flags in them.
    pub fn add_vlans(
        &mut self,
        port: &str,
        range: &VlanRange,
    ) -> Result<PortVlanReport, ClientError> {
        let VlanRange { first, last, pvid, untagged } = *range;
        let vlan_end = Some(last).filter(|&last| last != first);
        self.ask(&Request::AddVlan { port: port.to_owned(), vlan: first, vlan_end, pvid, untagged })
    }

    /// Removes a port from a range of VLANs.
    pub fn delete_vlans(
        &mut self,
        port: &str,
        range: &VlanRange,
    ) -> Result<PortVlanReport, ClientError> {
        let vlan_end = Some(range.last).filter(|&last| last != range.first);
        self.ask(&Request::DelVlan { port: port.to_owned(), vlan: range.first, vlan_end })
    }

    /// Returns the memberships in IP multicast groups of each port, or only of `port`.
    pub fn mdb(&mut self, port: Option<&str>) -> Result<MdbReport, ClientError> {
        self.ask(&Request::Mdb { port: port.map(str::to_owned) })
    }

    /// Returns the steering settings for the packets of each port, or only of `port`.
    pub fn rps(&mut self, port: Option<&str>) -> Result<Vec<PortRps>, ClientError> {
        self.ask(&Request::Rps { port: port.map(str::to_owned) })
    }

    /// Changes the steering of a receive queue's packets; without `queue`, of all of the port's
    /// queues.
    pub fn set_rps(
        &mut self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, ClientError> {
        let (port, change) = (port.to_owned(), change.clone());
        self.ask(&Request::SetRps { port, queue, change })
    }

    /// Returns the steering settings that apply to all ports, and the workers.
    pub fn steering(&mut self) -> Result<SteeringReport, ClientError> {
        self.ask(&Request::Steering {})
    }

    /// Starts a monitor, which copies packets that ports receive and send. The connection becomes
    /// the monitor's stream.
    pub fn monitor(
        mut self,
        settings: &MonitorSettings,
    ) -> Result<(MonitorReport, MonitorStream), ClientError> {
        let MonitorSettings { ports, direction, snaplen, count } = settings.clone();
        let snaplen = Some(snaplen).filter(|&snaplen| snaplen != MAX_SNAPLEN);
        let report = self.ask(&Request::Monitor { ports, direction, snaplen, count })?;
        let Client { path, stream } = self;
        let first_bytes = stream.buffer().to_vec();
        Ok((report, MonitorStream::new(path, stream.into_inner(), first_bytes)?))
    }

    /// Changes a steering setting that applies to all ports, by its name.
    pub fn set_steering(
        &mut self,
        name: &str,
        value: impl Into<SettingValue>,
    ) -> Result<SteeringReport, ClientError> {
        self.ask(&Request::SetSteering { settings: [(name.to_owned(), value.into())].into() })
    }
}
