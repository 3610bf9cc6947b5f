//! QEMU's `-netdev stream` and `-netdev dgram`, with Linux in the guest.

use std::io;

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_lab::{Host, LabError, Link, Station};
use tempfile::TempDir;

use crate::emulated::Emulated;
use crate::served::{PORT, echo};

/// Bytes that the guest sends and gets back. Emulated, a frame takes about a millisecond.
const BYTES: &str = "3000000";

/// A bridge between a guest's socket in a new folder and a host.
struct Network {
    bridge: Bridge,
    folder: TempDir,
    _hosts: [Host; 2],
}

impl Network {
    /// Starts the bridge. In the options, `@` stands for the folder of the socket `vm`.
    fn new(options: &str) -> Result<Self, LabError> {
        let (middle, host) = (Host::new("M")?, Host::new("B")?);
        let (link, _) = Link::veth(&host, "eth0", &middle, "port-b")?;
        let b = Station::new(link, 2)?;
        echo(&host, b.ipv4)?;
        let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
        let options = options.replace('@', &folder.path().display().to_string());
        let socket = format!("vm=unix:{}{options}", folder.path().join("vm").display());
        let port = |text: &str| PortSettings::new(text.parse().expect("a port string"));
        let ports = vec![port(&socket), port("packet:port-b")];
        let settings = BridgeSettings { ports, ..BridgeSettings::default() };
        let started = middle.run(|| Ok::<_, LabError>(Bridge::start(settings)))?;
        let bridge = started
            .map_err(|error| LabError::system(error.to_string(), io::Error::other("the bridge")))?;
        Ok(Network { bridge, folder, _hosts: [middle, host] })
    }

    /// Boots a guest with this network, in which `@` stands for the folder. It must get back what
    /// it sends, byte for byte.
    fn carry(&self, netdev: &str) {
        let commands = format!(
            "ip link set eth0 up && ip address add 10.77.0.1/24 dev eth0 && \
             head -c {BYTES} /dev/urandom >sent && echo sending && \
             nc 10.77.0.2 {PORT} <sent >got && cmp sent got && echo equal"
        );
        let folder = self.folder.path().display().to_string();
        let netdev = format!("{netdev},id=n0").replace('@', &folder);
        let device = "virtio-net-pci,netdev=n0,vectors=0,mac=02:00:00:00:00:01";
        let mut guest = Emulated::start(&commands, &["-netdev", &netdev, "-device", device]);
        guest.wait_for("sending");
        guest.wait_for("equal");
        guest.finish();
        let stats = self.bridge.stats();
        assert!(stats.iter().any(|stats| stats.port == "vm" && stats.rx_bytes > 3_000_000));
        for stats in &stats {
            for (reason, count) in &stats.drops {
                let is_usual = ["full", "down"].contains(&reason.as_str());
                assert!(is_usual || *count == 0, "{count} dropped as {reason}: {stats:?}");
            }
        }
    }
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_connects_by_a_stream_and_returns() -> Result<(), LabError> {
    let network = Network::new("")?;
    // The second machine is the first one that was started again.
    for _ in 0..2 {
        network.carry("stream,server=off,addr.type=unix,addr.path=@/vm");
    }
    assert!(network.bridge.ports().iter().all(|port| port.reopened == 0));
    Ok(())
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_listens_at_a_stream() -> Result<(), LabError> {
    Network::new("?connect=on")?.carry("stream,server=on,addr.type=unix,addr.path=@/vm");
    Ok(())
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_sends_datagrams() -> Result<(), LabError> {
    Network::new("?type=datagram&peer=@/qemu")?
        .carry("dgram,local.type=unix,local.path=@/qemu,remote.type=unix,remote.path=@/vm");
    Ok(())
}
