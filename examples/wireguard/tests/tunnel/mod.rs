//! Two endpoints in two network namespaces, for the test and the benchmark.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use gotatun::x25519::{PublicKey, StaticSecret};
use superpacket_lab::{LabError, Link, Route, Station, TwoHosts};
use tempfile::TempDir;

/// The UDP port of both endpoints.
const PORT: u16 = 51_820;
/// Time within which an endpoint must create its device.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program that can be the endpoint of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// This project's endpoint.
    Superpacket,
    /// This project's endpoint, without verifying the checksums of packets from the peer.
    #[allow(dead_code, reason = "the benchmark's")]
    Trusting,
    /// gotatun with its own TUN device and socket.
    #[allow(dead_code, reason = "the benchmark's")]
    Gotatun,
    /// wireguard-go.
    #[allow(dead_code, reason = "the benchmark's")]
    Go(PathBuf),
}

/// One end of a tunnel.
pub struct End {
    station: Station,
    number: u8,
    program: Program,
    config: PathBuf,
    secret: StaticSecret,
    peer: PublicKey,
    /// Address to which the peer's datagrams are sent.
    peer_address: IpAddr,
    child: Option<Child>,
}

/// Two ends, on hosts A and B of a veth pair.
pub struct Tunnel {
    #[allow(dead_code, reason = "the benchmark's")]
    pub hosts: TwoHosts,
    pub ends: [End; 2],
    _folder: TempDir,
}

impl Tunnel {
    /// Starts both ends. Their datagrams go over IPv6 if `over_ipv6`.
    #[allow(dead_code, reason = "the test's")]
    pub fn new(program: &Program, over_ipv6: bool) -> Result<Self, LabError> {
        Self::between(TwoHosts::new()?, program, over_ipv6)
    }

    /// Starts both ends on existing hosts.
    pub fn between(hosts: TwoHosts, program: &Program, over_ipv6: bool) -> Result<Self, LabError> {
        let folder =
            tempfile::tempdir().map_err(|error| LabError::system("a folder".to_owned(), error))?;
        // Keys of hosts that are gone after the test, so they need not be secret.
        let secrets = [StaticSecret::from([1; 32]), StaticSecret::from([2; 32])];
        let end = |number: usize, station: &Station, other: &Station| End {
            station: station.clone(),
            number: number as u8 + 1,
            program: program.clone(),
            config: folder.path().join(format!("{number}.conf")),
            secret: secrets[number].clone(),
            peer: PublicKey::from(&secrets[1 - number]),
            peer_address: if over_ipv6 { other.ipv6 } else { other.ipv4 },
            child: None,
        };
        let ends = [end(0, &hosts.a, &hosts.b), end(1, &hosts.b, &hosts.a)];
        let mut tunnel = Tunnel { hosts, ends, _folder: folder };
        for end in &mut tunnel.ends {
            end.start()?;
        }
        Ok(tunnel)
    }

    /// Returns the route through the tunnel, from A to B, or from B to A if `from_b`.
    pub fn route(&self, ipv6: bool, from_b: bool) -> Route<'_> {
        let (client, server) = if from_b { (1, 0) } else { (0, 1) };
        let address = self.ends[server].address(ipv6);
        Route {
            client: &self.ends[client].station.host,
            server: &self.ends[server].station.host,
            address,
        }
    }
}

impl End {
    /// Returns the name of the TUN device, which wireguard-go also uses for its control socket.
    fn interface(&self) -> String {
        format!("wgtest{}-{}", self.number, std::process::id() % 1000)
    }

    /// Returns the end's address in the tunnel.
    fn address(&self, ipv6: bool) -> IpAddr {
        if ipv6 {
            Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, self.number.into()).into()
        } else {
            Ipv4Addr::new(10, 99, 0, self.number).into()
        }
    }

    /// Returns the TUN device.
    pub fn link(&self) -> Link {
        self.station.host.link(&self.interface())
    }

    /// Starts the endpoint, and gives its device addresses.
    pub fn start(&mut self) -> Result<(), LabError> {
        let failed = |what: &str| {
            let what = format!("{:?}: {what}", self.program);
            move |error| LabError::system(what, error)
        };
        let encoded = |key: &[u8; 32]| STANDARD.encode(key);
        let endpoint = std::net::SocketAddr::new(self.peer_address, PORT);
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.99.0.0/24, fd99::/64\nEndpoint = {endpoint}\n",
            encoded(self.secret.as_bytes()),
            encoded(self.peer.as_bytes()),
        );
        fs::write(&self.config, text).map_err(failed("its settings"))?;
        let interface = self.interface();
        let program = match &self.program {
            Program::Go(path) => path.clone(),
            _ => PathBuf::from(env!("CARGO_BIN_EXE_superpacket-wireguard")),
        };
        let mut command = self.station.host.command(program);
        match &self.program {
            Program::Superpacket => command.arg(&interface).arg(&self.config),
            Program::Trusting => command.arg("--trusted-input").arg(&interface).arg(&self.config),
            Program::Gotatun => {
                // As many threads as tokio starts by default.
                let threads = available_parallelism().map_err(failed("its threads"))?.to_string();
                command.args(["--plain", "--threads", &threads]).arg(&interface).arg(&self.config)
            }
            Program::Go(_) => command
                .args(["--foreground", &interface])
                .env("LOG_LEVEL", "error")
                .stderr(Stdio::null()),
        };
        self.child = Some(command.stdin(Stdio::null()).spawn().map_err(failed("started"))?);
        let (link, start) = (self.link(), Instant::now());
        while !link.exists()? {
            if start.elapsed() > PATIENCE {
                return Err(failed("it makes no device")(std::io::ErrorKind::TimedOut.into()));
            }
            sleep(Duration::from_millis(10));
        }
        if let Program::Go(_) = self.program {
            self.configure_go(&interface).map_err(failed("its control socket"))?;
        }
        link.set_mtu(1420)?;
        link.up()?;
        link.add_address(&format!("{}/24", self.address(false)))?;
        link.add_address(&format!("{}/64", self.address(true)))
    }

    /// Configures the keys and peer of wireguard-go.
    fn configure_go(&self, interface: &str) -> std::io::Result<()> {
        let hex = |key: &[u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let endpoint = std::net::SocketAddr::new(self.peer_address, PORT);
        let (secret, peer) = (hex(self.secret.as_bytes()), hex(self.peer.as_bytes()));
        let request = format!(
            "set=1\nprivate_key={secret}\nlisten_port={PORT}\npublic_key={peer}\nendpoint={endpoint}\nallowed_ip=10.99.0.0/24\nallowed_ip=fd99::/64\n\n"
        );
        let path = Path::new("/var/run/wireguard").join(format!("{interface}.sock"));
        let start = Instant::now();
        while !path.exists() && start.elapsed() < PATIENCE {
            sleep(Duration::from_millis(10));
        }
        let mut socket = UnixStream::connect(path)?;
        socket.write_all(request.as_bytes())?;
        let mut answer = [0; 64];
        let length = socket.read(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer[..length]);
        if answer.trim() == "errno=0" {
            Ok(())
        } else {
            Err(std::io::Error::other(answer.into_owned()))
        }
    }

    /// Kills the endpoint without a warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The endpoint may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.kill();
    }
}
