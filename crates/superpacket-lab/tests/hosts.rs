//! Hosts and links: created, changed, moved, and removed completely.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};
use std::process::Stdio;
use std::time::{Duration, Instant};

use superpacket_lab::{
    Host, LabError, Link, Netem, RawOptions, RawSocket, SizeLimits, ThreeHosts, TwoHosts,
    available_or_skip, enter_user_namespace_before_main,
};
use superpacket_traffic::frame::Frame;

enter_user_namespace_before_main!();

/// Environment variable that marks the child process of [`a_killed_process_leaves_nothing`].
const CHILD: &str = "SUPERPACKET_LAB_TEST_CHILD";

fn wait_until(
    what: &str,
    mut happens: impl FnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let start = Instant::now();
    while !happens()? {
        assert!(start.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn a_host_has_its_own_interfaces_addresses_and_settings() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let (a, b) = (&hosts.a, &hosts.b);
    assert!(a.link.is_up()? && b.link.is_up()?);
    assert_eq!(a.link.mac()?, [2, 0, 0, 0, 0, 1]);
    assert!(!a.host.link("eth1").exists()?);

    // Only the host itself can bind its address.
    let bind = |host: &Host, address: IpAddr| host.run(|| TcpListener::bind((address, 0))).is_ok();
    for (address, other) in [(a.ipv4, b.ipv4), (a.ipv6, b.ipv6)] {
        assert!(bind(&a.host, address) && !bind(&a.host, other), "{address}, {other}");
    }

    a.link.set_mtu(9000)?;
    assert_eq!((a.link.mtu()?, b.link.mtu()?), (9000, 1500));
    a.link.down()?;
    assert!(!a.link.is_up()?);
    a.link.up()?;

    a.host.set_sysctl("net.ipv4.ip_forward", "1")?;
    assert_eq!(
        (a.host.sysctl("net.ipv4.ip_forward")?, b.host.sysctl("net/ipv4/ip_forward")?),
        ("1".into(), "0".into())
    );
    assert_eq!(a.host.sysfs("class/net/eth0/mtu")?, "9000", "the sysfs tree is the host's");

    let wrong = a.link.add_address("10.0.0.1").err().map(|error| error.to_string());
    assert!(
        wrong
            .as_ref()
            .is_some_and(|text| text.contains("host A, interface eth0: address \"10.0.0.1\"")),
        "{wrong:?}"
    );
    let missing = a.host.link("eth7").set_mtu(1500).err().map(|error| error.to_string());
    assert!(missing.as_ref().is_some_and(|text| text.contains("eth7")), "{missing:?}");
    Ok(())
}

#[test]
fn programs_and_threads_run_inside() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let Some(listing) = available_or_skip(hosts.a.host.output("cat", &["/proc/net/dev"])) else {
        return Ok(());
    };
    assert!(
        listing.contains("eth0") && listing.lines().count() == 4,
        "two headings, lo and eth0:\n{listing}"
    );
    let address = hosts.b.ipv4;
    let thread = hosts.b.host.spawn(move || TcpListener::bind((address, 0)))?;
    assert!(thread.join().is_ok_and(|bound| bound.is_ok()));
    let missing = hosts.a.host.output("superpacket-no-such-program", &[]);
    assert!(missing.is_err_and(|error| error.is_unavailable()));
    Ok(())
}

#[test]
fn a_panic_inside_a_host_comes_out() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("A")) else { return Ok(()) };
    let caught =
        std::panic::catch_unwind(|| host.run(|| -> Result<(), LabError> { panic!("inside") }));
    assert_eq!(
        caught.err().and_then(|panic| panic.downcast_ref::<&str>().copied()),
        Some("inside")
    );
    host.link("lo").down()
}

#[test]
fn a_link_moves_to_another_host() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let third = Host::new("C")?;
    let before = hosts.b.link.clone();
    let moved = hosts.b.link.move_to(&third)?;
    assert!(!before.exists()? && moved.exists()? && !moved.is_up()?);
    moved.up()?;
    moved.delete()?;
    assert!(!hosts.a.link.exists()?, "a veth pair goes as a whole");
    Ok(())
}

#[test]
fn dropping_a_host_takes_its_links_along() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let TwoHosts { a, b } = hosts;
    drop(b);
    wait_until("A's end of the pair goes with B", || Ok(!a.link.exists()?))
}

#[test]
fn a_killed_process_leaves_nothing() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("A")) else { return Ok(()) };
    let run = || -> std::io::Result<_> {
        let mut child = host
            .command(std::env::current_exe()?)
            .args(["--exact", "child_that_is_killed", "--ignored", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()?;
        let lines =
            child.stdout.take().map(|output| BufReader::new(output).lines()).into_iter().flatten();
        let ready = lines.map_while(Result::ok).any(|line| line.contains("the hosts are joined"));
        Ok((child, ready))
    };
    let (mut child, ready) = run().map_err(|error| LabError::system("child", error))?;
    let mut joined = host.link("to-child").exists();
    let received = || Ok(host.link("to-child").statistics()?.rx_packets);
    if matches!(joined, Ok(true)) {
        // The child is killed while frames flow.
        joined = wait_until("frames from the child", || Ok(received()? > 100))
            .and_then(|()| received())
            .and_then(|before| {
                wait_until("more frames", || Ok(received()? > before)).map(|()| true)
            });
    }
    child
        .kill()
        .and_then(|()| child.wait())
        .map_err(|error| LabError::system("killing the child", error))?;
    assert!(ready && joined?, "the child made its host");
    wait_until("the child's host goes with it", || Ok(!host.link("to-child").exists()?))
}

#[test]
#[ignore = "is the process that a_killed_process_leaves_nothing kills"]
fn child_that_is_killed() -> Result<(), LabError> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    let (mine, other) = (Host::of_this_thread("parent's")?, Host::new("child's")?);
    let (_to_child, eth0) = Link::veth(&mine, "to-child", &other, "eth0")?;
    let socket = RawSocket::open(&eth0, RawOptions::default())?;
    println!("the hosts are joined");
    let _ = std::io::stdout().flush();
    let frames: Vec<_> = Frame::udp4(100).run(10).iter().map(Frame::to_bytes).collect();
    for _ in 0..60_000 {
        socket.send(&frames)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn offload_switches_are_ethtools() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let link = &hosts.a.link;
    for name in [
        "tso",
        "tcp-segmentation-offload",
        "gso",
        "gro",
        "tx-udp-segmentation",
        "rx-gro-list",
        "rx-udp-gro-forwarding",
    ] {
        let was = link.feature(name)?;
        link.set_feature(name, !was)?;
        assert_eq!(link.feature(name)?, !was, "{name}");
        link.set_feature(name, was)?;
        assert_eq!(link.feature(name)?, was, "{name}");
    }
    // TSO requires scatter/gather: without it, TSO is requested but not active.
    link.set_feature("scatter-gather", false)?;
    let features = link.features()?;
    let tso = features.get("tx-tcp-segmentation").cloned().unwrap_or_default();
    assert!(tso.changeable && tso.requested && !tso.active, "{tso:?}");
    assert!(link.set_feature("tso", true).is_err(), "what is not in force afterwards is an error");
    link.set_features(&[("sg", true), ("tso", true)])?;

    for name in ["rx-lro", "no-such-feature"] {
        assert!(link.set_feature(name, true).is_err(), "veth has no {name}");
    }
    Ok(())
}

#[test]
fn size_limits_above_64_kilobytes() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let limits = SizeLimits {
        gso_max_size: Some(185_000),
        gro_max_size: Some(180_000),
        gso_ipv4_max_size: Some(150_000),
        gro_ipv4_max_size: Some(140_000),
        gso_max_segments: Some(200),
    };
    hosts.a.link.set_size_limits(limits)?;
    assert_eq!(hosts.a.link.size_limits()?, limits);
    Ok(())
}

#[test]
fn a_kernel_bridge_joins_hosts() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let Some(bridge) = available_or_skip(hosts.with_kernel_bridge()) else { return Ok(()) };
    let connect = || {
        let listener = hosts.b.host.run(|| TcpListener::bind((hosts.b.ipv4, 0)))?;
        let target = listener.local_addr()?;
        hosts.a.host.run(|| std::net::TcpStream::connect_timeout(&target, Duration::from_secs(3)))
    };
    assert!(connect().is_ok());
    assert!(hosts.a_side.statistics()?.rx_packets > 0 && hosts.b_side.statistics()?.tx_packets > 0);
    hosts.b_side.set_controller(None)?;
    bridge.delete()?;
    assert!(connect().is_err(), "no bridge, no way");
    Ok(())
}

#[test]
fn netem_is_set_and_cleared() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let netem = Netem { loss: 0.5, delay: Duration::from_millis(2), reorder: 0.1, duplicate: 0.01 };
    let Some(()) = available_or_skip(hosts.a.link.set_netem(&netem)) else { return Ok(()) };
    let shown = hosts.a.host.output("tc", &["qdisc", "show", "dev", "eth0"])?;
    assert!(shown.contains("netem") && shown.contains("loss 50%"), "{shown}");
    hosts.a.link.clear_netem()
}
