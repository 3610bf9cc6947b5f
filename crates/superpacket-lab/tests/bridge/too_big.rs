//! Datagrams that are too long for the way and may not be cut into shorter ones: dropped and
//! counted, their sender told, or fragmented, as it is asked for.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use superpacket::wire::IpVersion;
use superpacket_bridge::settings::TooBig;
use superpacket_lab::{LabError, Station};
use superpacket_port::system::{path_mtu, set_dont_fragment};

use crate::joined::{Joined, by_packet};

/// MTU of the port towards B, above IPv6's least.
const MTU: usize = 1300;
/// Fits the hosts' MTU, and not the port's.
const LONG: [u8; 1400] = [7; 1400];

/// A socket of A that sends to one of B's.
struct Datagrams {
    from: UdpSocket,
    to: UdpSocket,
    is_ipv6: bool,
}

impl Datagrams {
    /// Between these addresses; `whole`: they are sent with DF, and refused where the way is known
    /// to be too narrow.
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

    /// The MTU of the way as the sender's host knows it.
    fn path_mtu(&self) -> usize {
        path_mtu(&self.from, self.version()).expect("connected") as usize
    }

    fn version(&self) -> IpVersion {
        if self.is_ipv6 { IpVersion::V6 } else { IpVersion::V4 }
    }

    /// The longest payload that passes.
    fn fitting(&self) -> usize {
        MTU - if self.is_ipv6 { 40 } else { 20 } - 8
    }

    /// Sends so many bytes, which arrive next.
    fn arrives(&self, length: usize) {
        self.from.send(&LONG[..length]).expect("it fits");
        let mut buffer = [0; 2000];
        let received = self.to.recv(&mut buffer).expect("it arrives");
        assert!(buffer[..received] == LONG[..length], "{received} bytes of {length}");
    }
}

/// A bridge that waits for datagrams with its port towards B narrowed.
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

    fn say(&self, too_big: TooBig) {
        self.bridge.set_too_big(&self.names[1], too_big).expect("the port is there");
    }
}

#[test]
fn a_sender_learns_how_long_its_datagrams_may_be() -> Result<(), LabError> {
    let Some(joined) = narrow()? else { return Ok(()) };
    let (a, b) = (&joined.a, &joined.b);
    for ends in [[(a, a.ipv4), (b, b.ipv4)], [(a, a.ipv6), (b, b.ipv6)]] {
        joined.say(TooBig::Drop);
        let datagrams = Datagrams::between(ends, true)?;
        datagrams.arrives(datagrams.fitting());
        // Without a word: the sender goes on as before.
        let before = joined.too_big();
        for _ in 0..10 {
            datagrams.from.send(&LONG).expect("the sender knows nothing");
        }
        joined.wait("each is counted", |joined| joined.too_big() == before + 10);
        datagrams.arrives(1);
        assert_eq!(datagrams.path_mtu(), 1500);
        joined.say(TooBig::Icmp);
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
        // From then on its own host refuses what is too long, and the rest arrives.
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
    joined.say(TooBig::Fragment);
    let (a, b) = (&joined.a, &joined.b);
    let free = Datagrams::between([(a, a.ipv4), (b, b.ipv4)], false)?;
    free.arrives(LONG.len());
    assert_eq!((joined.stats(1).segmented, joined.stats(1).segments, joined.too_big()), (1, 2, 0));
    // With DF, and over IPv6, only the sender's host may.
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
