//! Datagrams longer than the path MTU that may not be segmented: dropped and counted, reported to
//! the sender, or fragmented, depending on the setting.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use superpacket::wire::IpVersion;
use superpacket_bridge::settings::PortChange;
use superpacket_lab::{LabError, Station};
use superpacket_port::system::{path_mtu, set_dont_fragment};

use crate::joined::{Joined, by_packet};

/// MTU of the port to B, above IPv6's minimum.
const MTU: usize = 1300;
/// A payload that fits the hosts' MTU, and not the port's.
const LONG: [u8; 1400] = [7; 1400];

/// A socket of A that sends to a socket of B.
struct Datagrams {
    from: UdpSocket,
    to: UdpSocket,
    is_ipv6: bool,
}

impl Datagrams {
    /// Opens sockets between these addresses. With `whole` they send with DF, and A's host refuses
    /// datagrams above a known path MTU.
    fn between([a, b]: [(&Station, IpAddr); 2], whole: bool) -> Result<Datagrams, LabError> {
        let socket = |(station, address): (&Station, IpAddr)| {
            station.host.run(|| {
                UdpSocket::bind((address, 0))
                    .map_err(|error| LabError::system("a UDP socket", error))
            })
        };
        let datagrams = Datagrams { from: socket(a)?, to: socket(b)?, is_ipv6: b.1.is_ipv6() };
        datagrams
            .from
            .connect(datagrams.to.local_addr().expect("bound"))
            .expect("B is on the same network");
        datagrams.to.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
        set_dont_fragment(&datagrams.from, datagrams.version(), whole).expect("settable");
        Ok(datagrams)
    }

    /// Returns the path MTU that the sender's host knows.
    fn path_mtu(&self) -> usize {
        path_mtu(&self.from, self.version()).expect("connected") as usize
    }

    fn version(&self) -> IpVersion {
        if self.is_ipv6 { IpVersion::V6 } else { IpVersion::V4 }
    }

    /// Returns the length of the longest payload that passes.
    fn fitting(&self) -> usize {
        MTU - if self.is_ipv6 { 40 } else { 20 } - 8
    }

    /// Sends this many bytes, and checks that they arrive next.
    fn arrives(&self, length: usize) {
        self.from.send(&LONG[..length]).expect("it fits");
        let mut buffer = [0; 2000];
        let received = self.to.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..received] == LONG[..length], "{received} bytes of {length}");
    }
}

/// Joins two hosts for datagrams, with a lower MTU on the port to B.
fn narrow() -> Result<Option<Joined>, LabError> {
    let Some(joined) = by_packet()? else { return Ok(None) };
    joined.sides.as_ref().expect("veth pairs")[1].set_mtu(MTU as u32)?;
    joined.wait("the MTU is seen", |joined| joined.bridge.ports()[1].mtu as usize == MTU);
    Ok(Some(joined))
}

impl Joined {
    fn too_big(&self) -> u64 {
        self.stats(1).drops["too_big"]
    }

    fn set_too_big(&self, word: &str) {
        let change = PortChange::setting("too_big", word);
        self.bridge.set_port(&self.names[1], &change).expect("the port is there");
    }
}

#[test]
fn a_sender_learns_how_long_its_datagrams_may_be() -> Result<(), LabError> {
    let Some(joined) = narrow()? else { return Ok(()) };
    let (a, b) = (&joined.a, &joined.b);
    for ends in [[(a, a.ipv4), (b, b.ipv4)], [(a, a.ipv6), (b, b.ipv6)]] {
        joined.set_too_big("drop");
        let datagrams = Datagrams::between(ends, true)?;
        datagrams.arrives(datagrams.fitting());
        // Silent drop: the sender's path MTU stays the same.
        let before = joined.too_big();
        for _ in 0..10 {
            datagrams.from.send(&LONG).expect("the sender knows nothing");
        }
        joined.wait("each is counted", |joined| joined.too_big() == before + 10);
        datagrams.arrives(1);
        assert_eq!(datagrams.path_mtu(), 1500);
        joined.set_too_big("icmp");
        datagrams.from.send(&LONG).expect("the sender knows nothing yet");
        joined.wait("the sender is told", |_| {
            let told = datagrams
                .from
                .take_error()
                .expect("a socket")
                .and_then(|error| error.raw_os_error());
            assert!(matches!(told, None | Some(libc::EMSGSIZE)), "{told:?}");
            told.is_some()
        });
        assert_eq!(datagrams.path_mtu(), MTU);
        // Afterwards the sender's host refuses longer datagrams, and others arrive.
        let refused = datagrams.from.send(&LONG).expect_err("it is too long");
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE), "{refused}");
        datagrams.arrives(datagrams.fitting());
        assert_eq!(joined.too_big(), before + 11);
    }
    Ok(())
}

#[test]
fn datagrams_that_may_be_fragmented_are_if_it_is_asked_for() -> Result<(), LabError> {
    let Some(joined) = narrow()? else { return Ok(()) };
    joined.set_too_big("fragment");
    let (a, b) = (&joined.a, &joined.b);
    let free = Datagrams::between([(a, a.ipv4), (b, b.ipv4)], false)?;
    free.arrives(LONG.len());
    assert_eq!((joined.stats(1).segmented, joined.stats(1).segments, joined.too_big()), (1, 2, 0));
    // With DF, and over IPv6, only the sender's host may fragment.
    let whole = Datagrams::between([(a, a.ipv4), (b, b.ipv4)], true)?;
    let ipv6 = Datagrams::between([(a, a.ipv6), (b, b.ipv6)], true)?;
    for (datagrams, dropped) in [(whole, 1), (ipv6, 2)] {
        datagrams.from.send(&LONG).expect("the sender knows nothing");
        joined.wait("it is counted", |joined| joined.too_big() == dropped);
        datagrams.arrives(datagrams.fitting());
    }
    assert_eq!(joined.stats(1).segmented, 1);
    Ok(())
}
