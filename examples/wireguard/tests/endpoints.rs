//! Tests two endpoints, by TCP between two kernels through their tunnel.
#![cfg(target_os = "linux")]

mod tunnel;

use std::fs;
use std::process::Command;
use std::time::Duration;

use superpacket_lab::{
    Direction, LabError, TcpBulk, TwoHosts, Until, available_or_skip,
    enter_user_namespace_before_main,
};
use tunnel::{Program, Tunnel};

enter_user_namespace_before_main!();

/// Sends `bytes` bytes in each direction and compares every byte. The first transfer includes the
/// handshake.
fn compare_bytes(tunnel: &Tunnel, bytes: u64) -> Result<(), LabError> {
    for ipv6 in [false, true] {
        let bulk = TcpBulk {
            flows: 2,
            until: Until::Bytes(bytes),
            direction: Direction::Both,
            verify: Some(7),
            stall: Duration::from_secs(20),
            ..TcpBulk::default()
        };
        let report = bulk.run(&tunnel.route(ipv6, false))?;
        for direction in [report.forward, report.reverse] {
            let direction = direction.expect("both were asked for");
            assert_eq!(
                direction.flows.iter().map(|flow| flow.bytes).collect::<Vec<_>>(),
                [bytes; 2],
                "IPv6: {ipv6}"
            );
        }
    }
    Ok(())
}

#[test]
fn tcp_arrives_as_it_was_sent() -> Result<(), LabError> {
    for over_ipv6 in [false, true] {
        let Some(tunnel) = available_or_skip(Tunnel::new(&Program::Superpacket, over_ipv6)) else {
            return Ok(());
        };
        compare_bytes(&tunnel, 8 << 20)?;
        for end in &tunnel.ends {
            let statistics = end.link().statistics()?;
            let (received, sent) = (
                statistics.rx_bytes / statistics.rx_packets,
                statistics.tx_bytes / statistics.tx_packets,
            );
            assert!(
                received > 1420 && sent > 1420,
                "{received} and {sent} bytes a packet: more than the tunnel's MTU"
            );
        }
    }
    Ok(())
}

#[test]
fn a_path_that_is_narrower_than_the_tunnel_gets_fragments() -> Result<(), LabError> {
    for over_ipv6 in [false, true] {
        let Some(tunnel) = available_or_skip(Tunnel::new(&Program::Superpacket, over_ipv6)) else {
            return Ok(());
        };
        compare_bytes(&tunnel, 1 << 18)?;
        let TwoHosts { a, b } = &tunnel.hosts;
        for (from, to) in [(a, b), (b, a)] {
            let (family, to) = if over_ipv6 {
                ("-6", format!("{}/128", to.ipv6))
            } else {
                ("-4", format!("{}/32", to.ipv4))
            };
            // The tunnel's MTU of 1420 bytes makes datagrams of up to 1452.
            from.host.output("ip", &[family, "route", "add", &to, "dev", "eth0", "mtu", "1280"])?;
        }
        compare_bytes(&tunnel, 1 << 20)?;
    }
    Ok(())
}

#[test]
fn a_killed_endpoint_can_be_restarted() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(&Program::Superpacket, false)) else {
        return Ok(());
    };
    compare_bytes(&tunnel, 1 << 20)?;
    tunnel.ends[1].kill();
    assert!(!tunnel.ends[1].link().exists()?, "the device goes with its program");
    tunnel.ends[1].start()?;
    // The restarted end must send first: the other's keys belong to a session that is gone.
    let first = TcpBulk {
        until: Until::Bytes(1 << 16),
        verify: Some(1),
        stall: Duration::from_secs(30),
        ..TcpBulk::default()
    };
    first.run(&tunnel.route(false, true))?;
    compare_bytes(&tunnel, 1 << 20)
}

#[test]
fn wrong_settings_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let cases = [
        ("", "there is no section [Interface]"),
        ("[Interface]\nListenPort = 1\n", "PrivateKey is missing"),
        ("[Interface]\nPrivateKey = AAAA\n", "PrivateKey: 32 bytes in base64 are wanted"),
        (&format!("[Interface]\nPrivateKey = {key}\nListenPort = x\n"), "ListenPort: x"),
        (
            &format!("[Interface]\nPrivateKey = {key}\nDNS = 1.1.1.1\n"),
            "[Interface]: DNS: allowed are PrivateKey",
        ),
        (
            &format!("[Interface]\nPrivateKey = {key}\n[Peer]\nAllowedIPs = 10.0.0.0/8\n"),
            "[Peer]: PublicKey is missing",
        ),
        (
            &format!(
                "[Interface]\nPrivateKey = {key}\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/77\n"
            ),
            "AllowedIPs: 10.0.0.0/77",
        ),
        (
            &format!(
                "[Interface]\nPrivateKey = {key}\n[Peer]\nPublicKey = {key}\nEndpoint = here\n"
            ),
            "Endpoint: here: HOST:PORT is wanted",
        ),
    ];
    for (text, expected) in cases {
        let path = folder.path().join("wg.conf");
        fs::write(&path, text).expect("it is written");
        let output = Command::new(env!("CARGO_BIN_EXE_superpacket-wireguard"))
            .arg("wgnone")
            .arg(&path)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{text}: {said}");
        assert!(!said.contains("AAAA"), "keys are not repeated: {said}");
    }
}
