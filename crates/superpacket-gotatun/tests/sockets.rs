//! Tests of gotatun's traits over sockets on loopback.
#![cfg(target_os = "linux")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gotatun::packet::{Packet, PacketBufPool};
use gotatun::udp::{UdpRecv, UdpSend, UdpTransportFactory, UdpTransportFactoryParams};
use superpacket_gotatun::{FromPeers, Sockets, ToPeers};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(5);

async fn bound() -> io::Result<(ToPeers, FromPeers, SocketAddr)> {
    let params =
        UdpTransportFactoryParams { addr: Some(Ipv4Addr::LOCALHOST.into()), port: 0, fwmark: None };
    let (sender, receiver) = Sockets.bind(&params).await?;
    let addr = sender.local_addr()?.expect("a bound socket has an address");
    Ok((sender, receiver, addr))
}

/// Returns a datagram of 1,000 bytes, all with the value `number`.
fn datagram(number: u8) -> Packet {
    Packet::copy_from(&[number; 1000])
}

#[tokio::test]
async fn datagrams_sent_together_arrive_in_order_with_their_source() -> io::Result<()> {
    let (sender, _, source) = bound().await?;
    let (_, mut receiver, addr) = bound().await?;
    let mut waiting: Vec<_> = (0..40).map(|number| (datagram(number), addr)).collect();
    sender.send_many_to(&mut (), &mut waiting).await?;
    assert!(waiting.is_empty(), "all were taken");
    let mut pool = PacketBufPool::new(64);
    let mut received = Vec::new();
    let mut calls = 0;
    while received.len() < 40 {
        timeout(PATIENCE, receiver.recv_many_from(&mut (), &mut pool, &mut received)).await??;
        calls += 1;
    }
    for (number, (packet, from)) in (0..).zip(&received) {
        assert_eq!((&packet[..], *from), (&[number; 1000][..], source), "datagram {number}");
    }
    assert!(calls < 40, "{calls} calls for 40 datagrams");
    Ok(())
}

#[tokio::test]
async fn one_at_a_time_and_many_may_be_asked_for_in_turn() -> io::Result<()> {
    let (sender, _, _) = bound().await?;
    let (_, mut receiver, addr) = bound().await?;
    sender
        .send_many_to(&mut (), &mut (0..40).map(|number| (datagram(number), addr)).collect())
        .await?;
    sender.send_to(datagram(40), addr).await?;
    let mut pool = PacketBufPool::new(64);
    let mut numbers = Vec::new();
    while numbers.len() <= 40 {
        let (packet, _) = timeout(PATIENCE, receiver.recv_from(&mut pool)).await??;
        numbers.push(packet[0]);
        if numbers.len() <= 40 {
            let mut packets = Vec::new();
            timeout(PATIENCE, receiver.recv_many_from(&mut (), &mut pool, &mut packets)).await??;
            numbers.extend(packets.iter().map(|(packet, _)| packet[0]));
        }
    }
    assert_eq!(numbers, Vec::from_iter(0..=40), "nothing lost, nothing overtaken");
    Ok(())
}
