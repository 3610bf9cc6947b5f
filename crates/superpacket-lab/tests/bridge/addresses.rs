//! A host that forges source addresses, its own inventions or other hosts', gets no other traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use superpacket_bridge::fdb::FdbFilter;
use superpacket_lab::{Blast, LabError, Link, RawOptions, RawSocket, Route, TcpBulk, Until};

use crate::joined::{Joined, KEY, by_packet};

/// Number of random source addresses that C sends from.
const FORGED_ADDRESSES: u32 = 100_000;
/// Frames that C sends per burst.
const BURST: usize = 250;
/// A destination whose frames the bridge learns from but never forwards (IEEE 802.1Q, section
/// 8.6.3).
const RESERVED: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];

fn forged_address(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_be_bytes();
    [6, 0, a, b, c, d]
}

/// Returns the bytes in unicast frames for other hosts that arrived on this link since the socket
/// was opened or last read.
fn overheard_bytes(link: &Link, socket: &RawSocket) -> Result<u64, LabError> {
    let own = link.mac()?;
    let capture = socket.capture(Duration::ZERO, 100_000)?;
    assert_eq!(capture.dropped, 0, "more came than the socket could hold");
    let is_for_another = |bytes: &[u8]| bytes[0] & 1 == 0 && bytes[..6] != own;
    Ok(capture
        .frames
        .iter()
        .filter(|frame| is_for_another(&frame.bytes))
        .map(|frame| frame.bytes.len() as u64)
        .sum())
}

/// Returns the hardware addresses that the bridge learned at the port to A (0) or B (1).
fn learned(joined: &Joined, side: usize) -> Vec<String> {
    let filter = FdbFilter { port: Some(joined.names[side].clone()), ..FdbFilter::default() };
    let page = joined.bridge.fdb(&filter, None, usize::MAX).expect("the port is there");
    page.entries.into_iter().map(|entry| entry.mac).collect()
}

#[test]
fn a_host_that_makes_up_addresses_or_takes_those_of_others_overhears_nothing()
-> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    nothing_is_overheard(&joined)
}

#[test]
fn it_overhears_nothing_that_the_kernel_forwards() -> Result<(), LabError> {
    let Some(joined) = crate::kernel_path::by_kernel()? else { return Ok(()) };
    nothing_is_overheard(&joined)
}

fn nothing_is_overheard(joined: &Joined) -> Result<(), LabError> {
    let c = joined.third()?;
    let (a_mac, b_mac) = (joined.a.link.mac()?, joined.b.link.mac()?);
    joined.carries(1, 1 << 20)?;

    let made_up: Vec<_> = (0..FORGED_ADDRESSES)
        .map(|number| Blast::minimal(RESERVED, forged_address(number)).frame)
        .collect();
    let as_a = Blast::minimal(b_mac, a_mac).frame;
    // Sends C's frames, and stores received ones until requested.
    let socket = RawSocket::open(&c.link, RawOptions::default())?;
    let received = Arc::new(AtomicU64::new(0));
    let load = TcpBulk {
        until: Until::Time(Duration::from_secs(3)),
        verify: Some(KEY),
        meter: Some(received.clone()),
        ..TcpBulk::default()
    };
    std::thread::scope(|scope| {
        // A is the receiver, because C forges A's address.
        let transfer = scope.spawn(|| load.run(&Route::ipv4(&joined.b, &joined.a)));
        joined.wait("B sends to A", |_| received.load(Ordering::Relaxed) > 1 << 20);

        // Before C reaches its address limit, after which it could not take over an address.
        let (before, start) = (received.load(Ordering::Relaxed), Instant::now());
        while start.elapsed() < Duration::from_secs(1) {
            socket.send(&[&as_a; 16])?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let (during, heard) =
            (received.load(Ordering::Relaxed) - before, overheard_bytes(&c.link, &socket)?);
        assert!(
            during > 1 << 20 && heard < during / 1_000,
            "while C sends as A, A got {during} bytes and C {heard}"
        );

        // Twelve times as many addresses as the table has entries.
        let (before, start) = (received.load(Ordering::Relaxed), Instant::now());
        for burst in made_up
            .chunks(BURST)
            .cycle()
            .take_while(|_| start.elapsed() < Duration::from_millis(1_500))
        {
            socket.send(burst)?;
        }
        let (during, heard) =
            (received.load(Ordering::Relaxed) - before, overheard_bytes(&c.link, &socket)?);
        assert!(
            during > 1 << 20 && heard < during / 1_000,
            "while C makes up addresses, A got {during} bytes and C {heard}"
        );
        let limit = joined.bridge.settings().table_size / 2;
        let of_c = joined.bridge.ports()[2].addresses;
        assert!(
            (limit * 9 / 10..=limit + 1).contains(&of_c),
            "C has {of_c} addresses of at most {limit}"
        );

        for (side, address) in [a_mac, b_mac].into_iter().enumerate() {
            let address = address.map(|byte| format!("{byte:02x}")).join(":");
            assert!(
                learned(joined, side).contains(&address),
                "{address} is known at {}",
                joined.names[side]
            );
        }
        transfer.join().expect("no panic").map(drop)
    })
}
