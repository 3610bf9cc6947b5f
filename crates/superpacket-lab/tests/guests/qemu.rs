//! QEMU's `-netdev stream`, `-netdev dgram` and `-netdev vhost-user`, with Linux in the guest.

use std::io;

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_lab::{Host, LabError, Link, Station};
use tempfile::TempDir;

use crate::emulated::Emulated;
use crate::served::{PORT, echo};

/// Bytes that the guest sends and gets back. Emulated, a frame takes about a millisecond.
const BYTES: &str = "3000000";

/// QEMU's network card, without interrupts of its own, which QEMU 7.2 cannot emulate for
/// vhost-user.
const CARD: &str = "virtio-net-pci,netdev=n0,vectors=0";

/// Sets the guest's network up.
const UP: &str = "ip link set eth0 up && ip address add 10.77.0.1/24 dev eth0";

/// Returns commands that say `begin`, send bytes, and compare what comes back.
fn exchange(begin: &str) -> String {
    format!(
        "head -c {BYTES} /dev/urandom >sent && echo {begin} && \
         nc 10.77.0.2 {PORT} <sent >got && cmp sent got"
    )
}

fn start(host: &Host, settings: BridgeSettings) -> Result<Bridge, LabError> {
    let started = host.run(|| Ok::<_, LabError>(Bridge::start(settings)))?;
    started.map_err(|error| LabError::system(error.to_string(), io::Error::other("the bridge")))
}

/// A bridge between a guest's socket in a new folder and a host.
struct Network {
    bridge: Bridge,
    folder: TempDir,
    middle: Host,
    _host: Host,
}

impl Network {
    /// Starts the bridge, with a port of this kind for the guest. In the options, `@` stands for
    /// the folder of the socket `vm`.
    fn new(kind: &str, options: &str) -> Result<Self, LabError> {
        let (middle, host) = (Host::new("M")?, Host::new("B")?);
        let (link, _) = Link::veth(&host, "eth0", &middle, "port-b")?;
        let b = Station::new(link, 2)?;
        echo(&host, b.ipv4)?;
        let folder = tempfile::tempdir().map_err(|error| LabError::system("a folder", error))?;
        let options = options.replace('@', &folder.path().display().to_string());
        let socket = format!("vm={kind}:{}{options}", folder.path().join("vm").display());
        let port = |text: &str| PortSettings::new(text.parse().expect("a port string"));
        let ports = vec![port(&socket), port("packet:port-b")];
        let bridge = start(&middle, BridgeSettings { ports, ..BridgeSettings::default() })?;
        Ok(Network { bridge, folder, middle, _host: host })
    }

    /// Ends the bridge, and starts another.
    fn restart(self) -> Result<Self, LabError> {
        let Network { bridge, folder, middle, _host } = self;
        let settings = bridge.settings();
        drop(bridge);
        Ok(Network { bridge: start(&middle, settings)?, folder, middle, _host })
    }

    /// Boots a guest that runs these commands, with these arguments of QEMU, in which `@` stands
    /// for the folder.
    fn boot(&self, commands: &str, arguments: &[impl AsRef<str>]) -> Emulated {
        let folder = self.folder.path().display().to_string();
        let arguments: Vec<_> =
            arguments.iter().map(|argument| argument.as_ref().replace('@', &folder)).collect();
        Emulated::start(commands, &arguments)
    }

    /// Boots a guest with this network, in which `@` stands for the folder. It must get back what
    /// it sends, byte for byte.
    fn carry(&self, netdev: &str) {
        let device = format!("{CARD},mac=02:00:00:00:00:01");
        let netdev = format!("{netdev},id=n0");
        let mut guest = self.boot(
            &format!("{UP} && {} && echo equal", exchange("sending")),
            &["-netdev", &netdev, "-device", &device],
        );
        guest.wait_for("sending");
        guest.wait_for("equal");
        guest.finish();
        self.has_carried();
    }

    /// Checks that the guest has sent and received, and that nothing was dropped but for full
    /// queues.
    fn has_carried(&self) {
        let stats = self.bridge.stats();
        let vm = stats.iter().find(|stats| stats.port == "vm").expect("the port is there");
        assert!(vm.rx_bytes > 3_000_000, "{stats:?}");
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
    let network = Network::new("unix", "")?;
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
    Network::new("unix", "?connect=on")?.carry("stream,server=on,addr.type=unix,addr.path=@/vm");
    Ok(())
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_sends_datagrams() -> Result<(), LabError> {
    Network::new("unix", "?type=datagram&peer=@/qemu")?
        .carry("dgram,local.type=unix,local.path=@/qemu,remote.type=unix,remote.path=@/vm");
    Ok(())
}

/// Arguments of a guest whose memory the bridge shares, with these options of socket and card.
fn vhost(socket: &str, card: &str) -> [String; 10] {
    [
        "-object",
        "memory-backend-memfd,id=mem,size=256M,share=on",
        "-numa",
        "node,memdev=mem",
        "-chardev",
        &format!("socket,id=c0,path=@/vm{socket}"),
        "-netdev",
        "vhost-user,id=n0,chardev=c0",
        "-device",
        &format!("{CARD},mac=02:00:00:00:00:01{card}"),
    ]
    .map(str::to_owned)
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_shares_its_memory_and_returns_with_other_features() -> Result<(), LabError> {
    let network = Network::new("vhost", "")?;
    let without = ",csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,\
                   guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";
    let cards = ["", without, ",mrg_rxbuf=off,event_idx=off", ",disable-modern=on,mrg_rxbuf=off"];
    let mut before = 0;
    for card in cards {
        let commands = format!("{UP} && {} && echo equal", exchange("sending"));
        let mut guest = network.boot(&commands, &vhost("", card));
        guest.wait_for("equal");
        guest.finish();
        network.has_carried();
        let stats = network.bridge.stats();
        let vm = stats.iter().find(|stats| stats.port == "vm").expect("the port is there");
        let is_plain = card == without;
        assert_eq!(vm.tx_super_packets > before, !is_plain, "{card}: {vm:?}");
        before = vm.tx_super_packets;
    }
    assert!(network.bridge.ports().iter().all(|port| port.reopened == 0));
    Ok(())
}

/// A running guest switches its offloads, and loads its driver again.
#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_that_shares_its_memory_switches_its_offloads() -> Result<(), LabError> {
    let network = Network::new("vhost", "")?;
    // What the guest says after each exchange, its command before it, and what it then sends.
    let steps = [
        ("first", UP.to_owned(), true),
        ("off", "ethtool -K eth0 tx off".to_owned(), false),
        ("on", "ethtool -K eth0 tx on tso on".to_owned(), true),
        (
            "reloaded",
            format!("rmmod virtio_net && insmod /modules/virtio_net.ko gso=0 && {UP}"),
            false,
        ),
    ];
    let commands = steps.iter().map(|(name, command, _)| {
        format!("{command} && {} && echo {name} && sleep 3", exchange("sending"))
    });
    let commands = commands.collect::<Vec<_>>().join(" && ");
    let mut guest = network.boot(&commands, &vhost("", ""));
    let mut before = 0;
    for (name, _, sends_super_packets) in steps {
        guest.wait_for(name);
        let stats = network.bridge.stats();
        let vm = stats.iter().find(|stats| stats.port == "vm").expect("the port is there");
        assert_eq!(vm.rx_super_packets > before, sends_super_packets, "{name}: {vm:?}");
        before = vm.rx_super_packets;
    }
    guest.finish();
    network.has_carried();
    Ok(())
}

/// The bridge is ended and started again while the guest runs: QEMU connects again, and the rings
/// continue.
#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_that_shares_its_memory_outlives_the_bridge() -> Result<(), LabError> {
    let mut network = Network::new("vhost", "")?;
    let wait = "until ping -c 1 -W 1 10.77.0.2 >/dev/null; do sleep 1; done";
    let [first, second, third] = ["first", "second", "third"].map(exchange);
    let commands = format!(
        "{UP} && {first} && echo one && sleep 3 && {wait} && {second} && echo two && sleep 3 && \
         {wait} && {third} && echo three"
    );
    let mut guest = network.boot(&commands, &vhost(",reconnect=1", ""));
    guest.wait_for("one");
    network = network.restart()?;
    guest.wait_for("two");
    network = network.restart()?;
    guest.wait_for("three");
    guest.finish();
    network.has_carried();
    Ok(())
}

#[test]
#[ignore = "boots a virtual machine"]
fn a_guest_that_shares_its_memory_listens() -> Result<(), LabError> {
    let network = Network::new("vhost", "?connect=on")?;
    let commands = format!("{UP} && {} && echo equal", exchange("sending"));
    let mut guest = network.boot(&commands, &vhost(",server=on", ""));
    guest.wait_for("equal");
    guest.finish();
    network.has_carried();
    Ok(())
}
