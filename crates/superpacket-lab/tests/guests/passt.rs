//! passt, which connects a guest to the sockets of the machine: over loopback, since it ends TCP
//! itself.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_lab::{GuestForm, GuestSocket, Host, LabError, Link, SocketGuest};

use crate::served::{PORT, echo};

/// A running passt, ended when dropped.
struct Passt(Child);

impl Drop for Passt {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guest with offloads and one without reach a server on the machine by passt, and get back what
/// they send. passt is started, ended, and started again while the bridge runs.
#[test]
#[ignore = "needs passt"]
fn guests_with_and_without_offloads_reach_the_machine_by_passt() -> Result<(), LabError> {
    let system = |action: &'static str| move |error: io::Error| LabError::system(action, error);
    let (middle, other) = (Host::new("M")?, Host::new("C")?);
    // passt copies addresses and routes of an interface with a default route.
    let (outside, _far) = Link::veth(&middle, "out", &other, "eth0")?;
    outside.add_address("192.0.2.1/24")?;
    middle.output("ip", &["route", "add", "default", "via", "192.0.2.254"])?;
    echo(&middle, Ipv4Addr::LOCALHOST.into())?;
    let folder = tempfile::tempdir().map_err(system("a folder"))?;
    // passt gives up its rights.
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).map_err(system("a folder"))?;
    let [passt, plain, stripped] =
        ["passt", "plain", "stripped"].map(|name| folder.path().join(name));
    let texts = [
        format!("passt=unix:{}?connect=on", passt.display()),
        format!("unix:{}", plain.display()),
        format!("unix:{}", stripped.display()),
    ];
    let ports =
        texts.iter().map(|text| PortSettings::new(text.parse().expect("a port string"))).collect();
    let settings = BridgeSettings { ports, ..BridgeSettings::default() };
    let bridge = middle
        .run(|| Ok::<_, LabError>(Bridge::start(settings)))?
        .map_err(|error| LabError::system(error.to_string(), io::Error::other("the bridge")))?;
    let is_up = |up: bool| {
        let start = Instant::now();
        while (bridge.ports()[0].state == "up") != up {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", bridge.ports());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for (number, path, form) in [(1, &plain, GuestForm::PLAIN), (2, &stripped, GuestForm::STRIPPED)]
    {
        let running = start_passt(&middle, &passt, number)?;
        is_up(true);
        let socket = UnixStream::connect(path).map_err(system("connecting a guest"))?;
        let host = Host::new("A")?;
        let guest = SocketGuest::start(&host, number, form, GuestSocket::Stream(socket))?;
        exchange(&guest.station.host)?;
        drop((guest, running));
        is_up(false);
    }
    let stats = bridge.stats();
    let large = stats.iter().find(|stats| stats.port == texts[2]).expect("is there");
    assert!(large.rx_super_packets > 0, "{large:?}");
    assert!(stats[0].segmented > 0, "{:?}", stats[0]);
    Ok(())
}

/// Starts passt for the guest with this number; the guest's router is the machine itself.
fn start_passt(middle: &Host, path: &std::path::Path, number: u8) -> Result<Passt, LabError> {
    let _ = std::fs::remove_file(path);
    let address = format!("10.77.0.{number}");
    let child = middle
        .command("passt")
        .args(["--foreground", "--one-off", "--quiet", "--mtu", "1500", "--socket"])
        .arg(path)
        .args(["--address", &address, "--netmask", "24", "--gateway", "10.77.0.9"])
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| LabError::system("starting passt", error))?;
    Ok(Passt(child))
}

/// Sends bytes to the guest's router, and compares what comes back.
fn exchange(guest: &Host) -> Result<(), LabError> {
    let router = SocketAddr::from(([10, 77, 0, 9], PORT));
    let system = |action: &'static str| move |error: io::Error| LabError::system(action, error);
    let connect = || {
        TcpStream::connect_timeout(&router, Duration::from_secs(20))
            .map_err(system("connecting by passt"))
    };
    let mut stream = guest.run(connect)?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    // Debian's passt of 2023 stops when a connection is full in both directions, so the guest waits
    // for each piece to come back.
    for round in 0..200u32 {
        let sent: Vec<u8> =
            (0..60_000u32).map(|index| (index ^ index >> 9 ^ round) as u8).collect();
        stream.write_all(&sent).map_err(system("sending by passt"))?;
        let mut got = vec![0; sent.len()];
        stream.read_exact(&mut got).map_err(system("receiving by passt"))?;
        assert!(got == sent, "other bytes came back");
    }
    Ok(())
}
