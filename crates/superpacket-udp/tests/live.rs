//! Tests of sockets on two hosts.
#![cfg(target_os = "linux")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use superpacket_lab::{
    Host, LabError, Link, TwoHosts, available_or_skip, enter_user_namespace_before_main,
};
use superpacket_udp::{
    Destination, EcnCodepoint, Fragmentation, RecvMeta, RefusalCause, UdpSocket,
};

enter_user_namespace_before_main!();

fn bind(host: &Host, address: impl Into<IpAddr>) -> Result<UdpSocket, LabError> {
    let address = SocketAddr::from((address.into(), 5000));
    host.run(|| {
        UdpSocket::bind(address)
            .map_err(|error| LabError::system(format!("binding {address}"), error))
    })
}

fn datagram(number: usize, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size).map(|index| (number + index * 3) as u8).collect();
    bytes[..2].copy_from_slice(&(number as u16).to_be_bytes());
    bytes
}

/// Makes the hosts resolve each other's hardware addresses. Until then, they queue few datagrams.
fn acquaint(from: &UdpSocket, to: &UdpSocket) {
    let mut sender = from.sender();
    sender.push(to.local_addr().expect("it is bound"), b"hello");
    sender.flush().expect("it sends");
    receive(to, 1);
}

/// Receives `count` datagrams within a few seconds.
fn receive(socket: &UdpSocket, count: usize) -> Vec<(RecvMeta, Vec<u8>)> {
    let (mut receiver, mut all, start) = (socket.receiver(), Vec::new(), Instant::now());
    while all.len() < count {
        assert!(start.elapsed() < Duration::from_secs(5), "{} of {count} datagrams", all.len());
        match receiver.try_receive() {
            Ok(received) => {
                all.extend(received.datagrams().map(|(meta, datagram)| (*meta, datagram.to_vec())))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(error) => panic!("{error}"),
        }
    }
    all
}

#[test]
fn runs_arrive_as_the_datagrams_that_they_were() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    for segmentation in [true, false] {
        hosts.a.link.set_feature("tx-udp-segmentation", segmentation)?;
        for (from, to) in [(hosts.a.ipv4, hosts.b.ipv4), (hosts.a.ipv6, hosts.b.ipv6)] {
            let (a, b) = (bind(&hosts.a.host, from)?, bind(&hosts.b.host, to)?);
            acquaint(&a, &b);
            let sent: Vec<_> = (0..200)
                .map(|number| datagram(number, if number % 50 == 49 { 700 } else { 1400 }))
                .collect();
            let mut sender = a.sender();
            let destination = Destination {
                ecn: Some(EcnCodepoint::Ect0),
                ..b.local_addr().expect("it is bound").into()
            };
            sent.iter().for_each(|datagram| sender.push(destination, datagram.as_slice()));
            sender.flush().expect("it sends");
            assert_eq!(
                (sender.counters().datagrams, sender.counters().runs),
                (200, 8),
                "at most 65,507 bytes in a run"
            );
            let received = receive(&b, 200);
            assert!(
                received.iter().map(|(_, datagram)| datagram).eq(&sent),
                "segmentation by the device: {segmentation}"
            );
            for (meta, _) in &received {
                assert_eq!(
                    (meta.addr.ip(), meta.dst_ip, meta.ecn),
                    (from, Some(to), Some(EcnCodepoint::Ect0))
                );
            }
            if segmentation {
                assert!(
                    received.iter().any(|(meta, _)| meta.len > meta.stride),
                    "received in runs"
                );
            }
            assert_eq!(a.refusal(), None);
        }
    }
    Ok(())
}

#[test]
fn a_kernel_that_refuses_runs_gets_datagrams() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let (a, b) = (bind(&hosts.a.host, hosts.a.ipv4)?, bind(&hosts.b.host, hosts.b.ipv4)?);
    // `udp_send_skb` does not segment datagrams without a checksum, and returns EINVAL.
    no_checksums(&a).map_err(|error| LabError::system("SO_NO_CHECK", error))?;
    acquaint(&a, &b);
    let to = b.local_addr().expect("it is bound");
    let (mut sender, mut second) = (a.sender(), a.sender());
    let sent: Vec<_> = (0..100).map(|number| datagram(number, 1000)).collect();
    let (first_half, second_half) = sent.split_at(50);
    first_half.iter().for_each(|datagram| sender.push(to, datagram));
    sender.flush().expect("datagrams are taken");
    second_half.iter().for_each(|datagram| second.push(to, datagram));
    second.flush().expect("datagrams are taken");
    assert!(receive(&b, 100).iter().map(|(_, datagram)| datagram).eq(&sent));
    assert_eq!((sender.counters().refused, second.counters().refused), (1, 0), "both senders know");
    let refusal = a.refusal().expect("it is told");
    assert_eq!((refusal.datagrams, refusal.errno), (50, Some(22)));
    a.set_segmentation(true);
    assert_eq!(a.refusal(), None);
    sent.iter().for_each(|datagram| sender.push(to, datagram));
    sender.flush().expect("datagrams are taken");
    assert!(receive(&b, 100).iter().map(|(_, datagram)| datagram).eq(&sent));
    assert_eq!((sender.counters().refused, a.refusal().is_some()), (2, true), "tried again");
    Ok(())
}

/// Sets `SO_NO_CHECK`: datagrams over IPv4 are sent without a checksum.
fn no_checksums(socket: &UdpSocket) -> io::Result<()> {
    use nix::libc;
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    // SAFETY: the option takes one `int`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Two hosts with a router between them, behind which the MTU is 1,280 bytes.
struct Narrow {
    a: Host,
    b: Host,
    // The router's links are removed with it.
    _router: Host,
}

const A: [&str; 2] = ["10.71.0.1", "fd71::1"];
const B: [&str; 2] = ["10.72.0.1", "fd72::1"];
/// Length of the longest IP packet that passes the router, in bytes.
const NARROW: usize = 1280;

impl Narrow {
    fn new() -> Result<Self, LabError> {
        let (a, b, router) = (Host::new("A")?, Host::new("B")?, Host::new("R")?);
        let (at_a, to_a) = Link::veth(&a, "eth0", &router, "to-a")?;
        let (at_b, to_b) = Link::veth(&b, "eth0", &router, "to-b")?;
        for (link, last) in [(&at_a, 1), (&to_a, 2)] {
            link.add_address(&format!("10.71.0.{last}/24"))?;
            link.add_address(&format!("fd71::{last}/64"))?;
        }
        for (link, last) in [(&at_b, 1), (&to_b, 2)] {
            link.add_address(&format!("10.72.0.{last}/24"))?;
            link.add_address(&format!("fd72::{last}/64"))?;
            link.set_mtu(NARROW as u32)?;
        }
        router.set_sysctl("net/ipv4/ip_forward", "1")?;
        router.set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
        // The router reports each datagram that is too long.
        router.set_sysctl("net/ipv4/icmp_ratelimit", "0")?;
        for (host, gateways) in [(&a, ["10.71.0.2", "fd71::2"]), (&b, ["10.72.0.2", "fd72::2"])] {
            for gateway in gateways {
                let family = if gateway.contains(':') { "-6" } else { "-4" };
                host.output("ip", &[family, "route", "add", "default", "via", gateway])?;
            }
        }
        Ok(Narrow { a, b, _router: router })
    }

    /// Returns bound sockets of A and B that have exchanged a datagram.
    fn sockets(&self, version: usize) -> Result<(UdpSocket, UdpSocket), LabError> {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let (from, to) = (bind(&self.a, address(A[version]))?, bind(&self.b, address(B[version]))?);
        acquaint(&from, &to);
        Ok((from, to))
    }
}

/// Receives all datagrams within a quarter of a second.
fn receive_some(socket: &UdpSocket) -> Vec<Vec<u8>> {
    let (mut receiver, mut all, start) = (socket.receiver(), Vec::new(), Instant::now());
    while start.elapsed() < Duration::from_millis(250) {
        match receiver.try_receive() {
            Ok(received) => all.extend(received.datagrams().map(|(_, datagram)| datagram.to_vec())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(error) => panic!("{error}"),
        }
    }
    all
}

#[test]
fn datagrams_of_all_sizes_pass_a_path_that_is_narrower_than_the_interface() -> Result<(), LabError>
{
    let Some(narrow) = available_or_skip(Narrow::new()) else { return Ok(()) };
    for version in [0, 1] {
        let (from, to) = narrow.sockets(version)?;
        let addr = to.local_addr().expect("it is bound");
        let longest = 1500 - if version == 0 { 28 } else { 48 };
        let mut sender = from.sender();
        // IPv6 routers do not fragment: the host learns the path MTU from the first datagram that
        // is lost.
        if version == 1 {
            sender.push(addr, vec![0; longest]);
            sender.flush().expect("it is sent");
            assert_eq!(receive_some(&to).len(), 0, "it is lost, and the path MTU learnt");
        }
        // Datagrams of 192 sizes are sent one by one, and then in runs of ten.
        for count in [1, 10] {
            let sizes = longest - 191..=longest;
            let sent: Vec<_> = sizes
                .flat_map(|size| (0..count).map(move |number| datagram(number, size)))
                .collect();
            for datagrams in sent.chunks(10) {
                datagrams
                    .iter()
                    .for_each(|datagram| sender.push(addr, datagram.as_slice().to_vec()));
                sender.flush().expect("they are sent");
                assert!(
                    receive(&to, datagrams.len())
                        .iter()
                        .map(|(_, datagram)| datagram)
                        .eq(datagrams)
                );
            }
        }
        assert_eq!(
            (from.refusal(), sender.counters().refused, sender.counters().rejected),
            (None, 0, 0),
            "runs stay on"
        );
    }
    Ok(())
}

#[test]
fn runs_above_a_path_mtu_that_the_host_knows_are_sent_one_by_one_and_told_once()
-> Result<(), LabError> {
    let Some(narrow) = available_or_skip(Narrow::new()) else { return Ok(()) };
    for version in [0, 1] {
        let (family, prefix, gateway) =
            [("-4", "10.72.0.0/24", "10.71.0.2"), ("-6", "fd72::/64", "fd71::2")][version];
        narrow.a.output("ip", &[family, "route", "add", prefix, "via", gateway, "mtu", "1280"])?;
        let (from, to) = narrow.sockets(version)?;
        let addr = to.local_addr().expect("it is bound");
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut sender = from.sender();
        let notices = std::sync::Arc::clone(&told);
        sender.set_notice(move |refusal| notices.lock().expect("not poisoned").push(refusal.cause));
        for round in 0..3 {
            let sent: Vec<_> = (0..30)
                .map(|number| datagram(number, if number == 29 { 300 } else { 1420 }))
                .collect();
            sent.iter().for_each(|datagram| sender.push(addr, datagram.as_slice().to_vec()));
            sender.flush().expect("they are sent in fragments");
            assert!(receive(&to, 30).iter().map(|(_, datagram)| datagram).eq(&sent));
            assert_eq!((sender.counters().too_long, from.refusal()), (round + 1, None));
        }
        assert_eq!(*told.lock().expect("not poisoned"), [RefusalCause::TooLong]);
        // Datagrams that fit are sent in one call.
        let (runs, sent) = (
            sender.counters().runs,
            (0..30).map(|number| datagram(number, 1200)).collect::<Vec<_>>(),
        );
        sent.iter().for_each(|datagram| sender.push(addr, datagram.as_slice().to_vec()));
        sender.flush().expect("they fit");
        assert!(receive(&to, 30).iter().map(|(_, datagram)| datagram).eq(&sent));
        assert_eq!(sender.counters().runs, runs + 1);
    }
    Ok(())
}

#[test]
fn fragments_may_be_forbidden() -> Result<(), LabError> {
    let Some(narrow) = available_or_skip(Narrow::new()) else { return Ok(()) };
    for version in [0, 1] {
        let (from, to) = narrow.sockets(version)?;
        let addr = to.local_addr().expect("it is bound");
        from.set_fragmentation(Fragmentation::Forbidden).expect("it is set");
        let fits = NARROW - if version == 0 { 28 } else { 48 };
        let mut sender = from.sender();
        for _ in 0..2 {
            // They are not sent as a run, which the router would drop completely.
            for size in [fits + 1, fits] {
                sender.push(addr, datagram(1, size));
                sender.flush().expect("it fits the interface");
            }
            assert!(receive_some(&to) == [datagram(1, fits)], "the longer one is lost on its way");
        }
        sender.push(addr, datagram(1, 1500));
        assert_eq!(
            sender.flush().expect_err("the interface takes 1500 bytes").raw_os_error(),
            Some(90)
        );
        from.set_fragmentation(Fragmentation::Allowed).expect("it is set");
        sender.push(addr, datagram(1, 1500));
        sender.flush().expect("it is sent");
        assert_eq!(receive(&to, 1)[0].1, datagram(1, 1500));
    }
    Ok(())
}

#[test]
fn replies_leave_from_the_address_that_was_asked() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    hosts.b.link.add_address("10.77.0.77/24")?;
    hosts.b.link.add_address("fd77::77/64")?;
    let wildcard = bind(&hosts.b.host, [0u16; 8])?;
    for (from, asked) in [(hosts.a.ipv4, "10.77.0.77"), (hosts.a.ipv6, "fd77::77")] {
        let asked: IpAddr = asked.parse().expect("an address");
        let client = bind(&hosts.a.host, from)?;
        let mut sender = client.sender();
        (0..3)
            .for_each(|number| sender.push(SocketAddr::from((asked, 5000)), datagram(number, 100)));
        sender.flush().expect("it sends");
        let questions = receive(&wildcard, 3);
        let mut replier = wildcard.sender();
        for (meta, question) in &questions {
            let to =
                Destination { src_ip: meta.dst_ip, ecn: Some(EcnCodepoint::Ce), addr: meta.addr };
            replier.push(to, question);
        }
        replier.flush().expect("it sends");
        for (meta, _) in receive(&client, 3) {
            assert_eq!((meta.addr.ip(), meta.ecn), (asked, Some(EcnCodepoint::Ce)));
        }
    }
    Ok(())
}

#[test]
fn buffers_are_large_and_what_was_got_is_told() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let socket = bind(&hosts.a.host, hosts.a.ipv4)?;
    let sizes = socket.buffer_sizes().expect("it is told");
    let got = socket.set_buffer_sizes(100_000, 100_000).expect("it is less");
    assert!(got.receive < sizes.receive && got.receive >= 100_000, "{got:?}, {sizes:?}");
    if setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20)).is_ok() {
        assert_eq!(sizes.receive, 8 << 20, "this process may");
    }
    Ok(())
}

#[test]
fn a_mark_is_the_sockets() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let socket = bind(&hosts.a.host, hosts.a.ipv4)?;
    socket.set_mark(51_820).expect("a namespace of our own");
    assert_eq!(getsockopt(&socket, sockopt::Mark), Ok(51_820));
    Ok(())
}

#[test]
fn datagrams_are_lent_to_be_changed_and_an_empty_one_is_one() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let (a, b) = (bind(&hosts.a.host, hosts.a.ipv4)?, bind(&hosts.b.host, hosts.b.ipv4)?);
    let mut sender = a.sender();
    let to = b.local_addr().expect("it is bound");
    for size in [100, 100, 40, 0, 7] {
        sender.push(to, vec![9; size]);
    }
    sender.flush().expect("it sends");
    std::thread::sleep(Duration::from_millis(100));
    let mut receiver = b.receiver();
    let mut received = receiver.receive().expect("they are there");
    for (_, datagram) in received.datagrams_mut() {
        datagram.fill(8);
    }
    let lengths: Vec<_> = received.datagrams().map(|(_, datagram)| datagram.len()).collect();
    assert_eq!(lengths, [100, 100, 40, 0, 7]);
    assert!(received.datagrams().flat_map(|(_, datagram)| datagram).all(|&byte| byte == 8));
    assert_eq!(received.datagrams_mut().count(), 5);
    assert_eq!(
        received.runs().map(|(meta, run)| (meta.stride, run.len())).collect::<Vec<_>>(),
        [(100, 240), (0, 0), (7, 7)]
    );
    assert_eq!(
        receiver.try_receive().expect_err("nothing is left").kind(),
        io::ErrorKind::WouldBlock
    );
    Ok(())
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_send_and_receive() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let (a, b) = (bind(&hosts.a.host, hosts.a.ipv6)?, bind(&hosts.b.host, hosts.b.ipv6)?);
    acquaint(&a, &b);
    let (from, to) = (a.local_addr().expect("it is bound"), b.local_addr().expect("it is bound"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let echoed = runtime.block_on(async move {
        let (mut sender, mut receiver) = a.split_async().expect("it is registered");
        let (mut replier, mut asked) = b.split_async().expect("it is registered");
        tokio::spawn(async move {
            loop {
                let received = asked.receive().await.expect("it receives");
                received
                    .datagrams()
                    .for_each(|(_, datagram)| replier.push(from, datagram.to_vec()));
                replier.flush().await.expect("it sends");
            }
        });
        let mut echoed = Vec::new();
        for round in 0..20 {
            let sent: Vec<_> = (0..40).map(|number| datagram(round * 40 + number, 1200)).collect();
            sent.iter().for_each(|datagram| sender.push(to, datagram.clone()));
            sender.flush_lossy().await.expect("it sends");
            while echoed.len() < (round + 1) * 40 {
                let received = tokio::time::timeout(Duration::from_secs(5), receiver.receive())
                    .await
                    .expect("they come")
                    .expect("it receives");
                echoed.extend(received.datagrams().map(|(_, datagram)| datagram.to_vec()));
            }
        }
        assert_eq!(
            (sender.get_ref().counters().runs, receiver.get_ref().socket().refusal()),
            (20, None)
        );
        echoed
    });
    assert!(echoed == (0..800).map(|number| datagram(number, 1200)).collect::<Vec<_>>());
    Ok(())
}
