//! The client's side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;

use super::client_error::ClientError;
use super::monitor::MonitorStream;
use super::request::Reply;
use super::{Address, ErrorCode, Request, RpsChange, ServedBy};
use crate::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use crate::monitor::{MAX_SNAPLEN, MonitorReport, MonitorSettings};
use crate::report::{MdbReport, PortFeatures, PortReport, PortRps, PortStats, SteeringReport};
use crate::settings::PortChange;
use crate::vlan::{PortVlanReport, VlanRange, VlanReport};

/// How long a bridge may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer that is read, in bytes: far more than thousands of ports need.
const MAX_REPLY: u64 = 16 << 20;

/// Connects, unless the bridge takes no connection for so long: the queue of one that is stopped
/// (SIGSTOP) stays full.
pub(super) fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(patience))?;
    match connect(&stream, &address) {
        Ok(()) => Ok(stream),
        Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the bridge takes no connection"))
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
    /// Connects to the bridge that is controlled there.
    ///
    /// # Errors
    /// [`ClientError`] says what is missing.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let whole = || path.to_owned();
        let stream = connect_within(path, PATIENCE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ClientError::Absent { path: whole() },
            io::ErrorKind::ConnectionRefused => ClientError::Dead { path: whole() },
            io::ErrorKind::PermissionDenied => ClientError::Denied { path: whole() },
            _ => ClientError::Io { path: whole(), source: error },
        })?;
        let bounded = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        bounded.map_err(|source| ClientError::Io { path: whole(), source })?;
        Ok(Client { path: whole(), stream: BufReader::new(stream) })
    }

    /// Where the bridge is controlled.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the bridge says no; others if it cannot be asked.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        let malformed =
            |problem: String| ClientError::Malformed { path: self.path.clone(), problem };
        let failed = |source: io::Error| ClientError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_vec(request).map_err(|error| malformed(error.to_string()))?;
        line.push(b'\n');
        // A server that does not serve us says so and closes: its word is there to read although
        // ours found nobody.
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
                false => malformed(format!("it breaks off after {} bytes", reply.len())),
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

    /// Who serves, and which protocol.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn version(&mut self) -> Result<ServedBy, ClientError> {
        self.ask(&Request::Version {})
    }

    /// All ports at a glance, or one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn ports(&mut self, port: Option<&str>) -> Result<Vec<PortReport>, ClientError> {
        self.ask(&Request::Ports { port: port.map(str::to_owned) })
    }

    /// The offloads of all ports, or of one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn features(&mut self, port: Option<&str>) -> Result<Vec<PortFeatures>, ClientError> {
        self.ask(&Request::Features { port: port.map(str::to_owned) })
    }

    /// What all ports counted, or one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn stats(&mut self, port: Option<&str>) -> Result<Vec<PortStats>, ClientError> {
        self.ask(&Request::Stats { port: port.map(str::to_owned) })
    }

    /// Switches an offload, named as in ethtool.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
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

    /// Sets a limit.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_limit(
        &mut self,
        port: &str,
        name: &str,
        value: u64,
    ) -> Result<PortReport, ClientError> {
        self.ask(&Request::SetLimit { port: port.to_owned(), name: name.to_owned(), value })
    }

    /// Says what becomes of packets that are too long: `drop`, `icmp`, `fragment`.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_too_big(&mut self, port: &str, what: &str) -> Result<PortReport, ClientError> {
        self.ask(&Request::SetTooBig { port: port.to_owned(), what: what.to_owned() })
    }

    /// Says how what a port receives is aggregated: `storage`, `delivery`,
    /// `gro_past_push`, `gro_udp_no_checksum`, `gro_uneven` or `lro_acks`.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_aggregation(
        &mut self,
        port: &str,
        name: &str,
        word: &str,
    ) -> Result<PortReport, ClientError> {
        self.ask(&Request::SetAggregation {
            port: port.to_owned(),
            name: name.to_owned(),
            value: word.to_owned(),
        })
    }

    /// Turns a switch of what passes between a port and the others: `isolated`, `learning`,
    /// `flood`, `mcast_flood` or `bcast_flood`.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_forwarding(
        &mut self,
        port: &str,
        name: &str,
        on: bool,
    ) -> Result<PortReport, ClientError> {
        self.ask(&Request::SetForwarding { port: port.to_owned(), name: name.to_owned(), on })
    }

    /// Opens another port.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn add_port(&mut self, port: &str) -> Result<PortReport, ClientError> {
        self.ask(&Request::AddPort { port: port.to_owned() })
    }

    /// Changes options of a port's string, and settings of the port: all of them, or none.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_port(&mut self, port: &str, change: &PortChange) -> Result<PortReport, ClientError> {
        let PortChange { options, settings } = change.clone();
        self.ask(&Request::SetPort { port: port.to_owned(), options, settings })
    }

    /// Closes a port for good; returns what it was last.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn remove_port(&mut self, port: &str) -> Result<PortReport, ClientError> {
        self.ask(&Request::DelPort { port: port.to_owned() })
    }

    /// The address table, from after `after` on: at most `most` entries, and
    /// [`MOST_LISTED`](crate::fdb::MOST_LISTED).
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
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
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
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

    /// Adds a static entry to the address table, in place of one that is there.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
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

    /// Deletes an entry of the address table, static or learned.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn delete_entry(&mut self, port: &str, station: Station) -> Result<FdbEntry, ClientError> {
        let vlan = Some(station.vlan).filter(|&vlan| vlan != 0);
        self.ask(&Request::DelFdb { port: port.to_owned(), mac: station.mac(), vlan })
    }

    /// Forgets learned addresses; says how many.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn flush_fdb(&mut self, filter: &FdbFilter) -> Result<usize, ClientError> {
        let FdbFilter { port, vlan, .. } = filter.clone();
        self.ask(&Request::FlushFdb { port, vlan })
    }

    /// The VLANs of all ports, or of one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn vlans(&mut self, port: Option<&str>) -> Result<VlanReport, ClientError> {
        self.ask(&Request::Vlan { port: port.map(str::to_owned) })
    }

    /// Puts a port in VLANs, or changes how it is in them.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn add_vlans(
        &mut self,
        port: &str,
        range: &VlanRange,
    ) -> Result<PortVlanReport, ClientError> {
        let VlanRange { first, last, pvid, untagged } = *range;
        let vlan_end = Some(last).filter(|&last| last != first);
        self.ask(&Request::AddVlan { port: port.to_owned(), vlan: first, vlan_end, pvid, untagged })
    }

    /// Takes a port out of VLANs, from the first to the last.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn delete_vlans(
        &mut self,
        port: &str,
        range: &VlanRange,
    ) -> Result<PortVlanReport, ClientError> {
        let vlan_end = Some(range.last).filter(|&last| last != range.first);
        self.ask(&Request::DelVlan { port: port.to_owned(), vlan: range.first, vlan_end })
    }

    /// Who is in which IP group, of all ports or of one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn mdb(&mut self, port: Option<&str>) -> Result<MdbReport, ClientError> {
        self.ask(&Request::Mdb { port: port.map(str::to_owned) })
    }

    /// How packets of all ports are steered, or of one.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn rps(&mut self, port: Option<&str>) -> Result<Vec<PortRps>, ClientError> {
        self.ask(&Request::Rps { port: port.map(str::to_owned) })
    }

    /// Changes how packets of a receive queue, or of all of a port, are steered.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_rps(
        &mut self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, ClientError> {
        let (mut mask, mut cpu_list, mut auto, mut flow_count, mut in_place_below) =
            (None, None, false, None, None);
        match change {
            RpsChange::Mask(text) => mask = Some(text.clone()),
            RpsChange::List(text) => cpu_list = Some(text.clone()),
            RpsChange::Auto => auto = true,
            RpsChange::FlowCount(count) => flow_count = Some(*count),
            RpsChange::InPlace(when) => in_place_below = Some(*when),
        }
        self.ask(&Request::SetRps {
            port: port.to_owned(),
            queue,
            mask,
            cpu_list,
            auto,
            flow_count,
            in_place_below,
        })
    }

    /// What holds for the steering of all ports, and the workers.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn steering(&mut self) -> Result<SteeringReport, ClientError> {
        self.ask(&Request::Steering {})
    }

    /// Begins to copy what ports receive and send; the connection is the monitor's from then on.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn monitor(
        mut self,
        settings: &MonitorSettings,
    ) -> Result<(MonitorReport, MonitorStream), ClientError> {
        let MonitorSettings { ports, direction, snaplen, count } = settings.clone();
        let snaplen = Some(snaplen).filter(|&snaplen| snaplen != MAX_SNAPLEN);
        let report = self.ask(&Request::Monitor { ports, direction, snaplen, count })?;
        let Client { path, stream } = self;
        let begun = stream.buffer().to_vec();
        Ok((report, MonitorStream::new(path, stream.into_inner(), begun)?))
    }

    /// Changes what holds for the steering of all ports, by its name.
    ///
    /// # Errors
    /// As [`ask`](Client::ask).
    pub fn set_steering(&mut self, name: &str, value: &str) -> Result<SteeringReport, ClientError> {
        self.ask(&Request::SetSteering { name: name.to_owned(), value: value.to_owned() })
    }
}
