//! A tunnel over UDP, without a cipher: 31 lines of the user's own.
//!
//! `udp_tunnel tun0 192.0.2.1:5000 192.0.2.2:5000` creates the device `tun0`; configure its
//! addresses with `ip addr add`. Packets that the host sends into the device go from the first UDP
//! address to the second, where the same program runs with exchanged addresses. A VPN would encrypt
//! packets before they are pushed to the sender, and decrypt them before they are pushed to the
//! writer.

use std::error::Error;
use std::net::SocketAddr;
use std::{env, io, thread};

// The user's own lines begin here.
use superpacket_tun::{NewBuffers, Queue, Reader, Tun, Writer};
use superpacket_udp::{Receiver, Sender, UdpSocket};

/// MTU of the tunnel: what fits into 1500 bytes behind IPv6 and UDP headers.
const MTU: u32 = 1500 - 48;

/// Opens the device, and forwards in both directions until one of them fails.
fn tunnel(device: &str, socket: UdpSocket, peer: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (reader, mut writer) = Tun::builder(device).mtu(MTU).open()?.split();
    writer.set_notice(|refusal| eprintln!("{refusal}"));
    let (mut sender, receiver) = socket.split();
    sender.set_notice(|refusal| eprintln!("{refusal}"));
    thread::spawn(move || receive(receiver, writer));
    Ok(send(reader, sender, peer)?)
}

/// Sends the packets from the host, up to 64 KB at once, to the peer.
fn send(
    mut reader: Reader<Queue>,
    mut sender: Sender<UdpSocket, Vec<u8>>,
    peer: SocketAddr,
) -> io::Result<()> {
    let mut packets = Vec::new();
    loop {
        reader.read_into(&mut NewBuffers::new(&mut packets, |length| vec![0; length]))?;
        packets.drain(..).for_each(|packet| sender.push(peer, packet));
        // Protocols above retransmit lost datagrams if necessary.
        let _ = sender.flush_lossy();
    }
}

/// Writes arriving packets to the host. All packets that wait are merged.
fn receive(mut receiver: Receiver, mut writer: Writer<Queue, Vec<u8>>) -> io::Result<()> {
    loop {
        receiver.receive()?.datagrams().for_each(|(_, datagram)| writer.push(datagram.to_vec()));
        if let Err(error) = writer.flush() {
            eprintln!("{} packets are dropped: {error}", writer.clear());
        }
    }
}
// The user's own lines end here.

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [device, local, remote] = arguments.as_slice() else {
        return Err("usage: udp_tunnel DEVICE LOCAL:PORT REMOTE:PORT".into());
    };
    tunnel(device, UdpSocket::bind(local.as_str())?, remote.parse()?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use superpacket_lab::{
        Direction, LabError, Route, TcpBulk, TwoHosts, Until, available_or_skip,
        enter_user_namespace_before_main,
    };

    use super::*;

    enter_user_namespace_before_main!();

    #[test]
    fn tcp_passes_through_a_tunnel_between_two_hosts() -> Result<(), LabError> {
        let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
        let probe = || {
            Tun::open("probe").map_err(|error| LabError::Forbidden {
                what: "a TUN device".into(),
                reason: error.to_string(),
            })
        };
        let Some(_) = available_or_skip(hosts.a.host.run(probe)) else { return Ok(()) };
        for (from, to, addresses) in [
            (&hosts.a, &hosts.b, ["10.9.0.1/24", "fd09::1/64"]),
            (&hosts.b, &hosts.a, ["10.9.0.2/24", "fd09::2/64"]),
        ] {
            let (local, remote) = ((from.ipv4, 5000), (to.ipv4, 5000));
            // The thread ends with the test's process.
            let _ = from.host.spawn(move || -> Result<(), LabError> {
                tunnel("tun0", UdpSocket::bind(local).expect("the port is free"), remote.into())
                    .expect("it goes on");
                Ok(())
            })?;
            let (device, start) = (from.host.link("tun0"), Instant::now());
            while !device.exists()? {
                assert!(start.elapsed() < Duration::from_secs(10), "no device is made");
                thread::sleep(Duration::from_millis(5));
            }
            for address in addresses {
                device.add_address(address)?;
            }
        }
        for address in ["10.9.0.2", "fd09::2"] {
            let route = Route {
                client: &hosts.a.host,
                server: &hosts.b.host,
                address: address.parse().expect("an address"),
            };
            let bulk = TcpBulk {
                until: Until::Bytes(10 << 20),
                direction: Direction::Both,
                verify: Some(3),
                ..TcpBulk::default()
            };
            bulk.run(&route)?;
        }
        Ok(())
    }

    #[test]
    fn the_first_comment_tells_how_many_lines_the_user_writes() {
        let source = include_str!("udp_tunnel.rs");
        let own = source
            .split_once("begin here.\n")
            .and_then(|(_, rest)| rest.split_once("// The user's own lines end"))
            .expect("two comments")
            .0;
        let own = own
            .lines()
            .map(str::trim_start)
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        assert!(
            source.starts_with(&format!(
                "//! A tunnel over UDP, without a cipher: {own} lines of the user's own."
            )),
            "{own}"
        );
    }
}
