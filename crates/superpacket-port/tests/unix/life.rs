//! Peers that come, leave and return, and the socket's file.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use superpacket_port::StopReason;

use super::*;

#[test]
fn a_peer_that_leaves_and_returns_is_the_same_port() {
    let mut opened = Opened::new("?mtu=1400");
    assert_eq!(opened.port.state().link, LinkState::Down);
    assert_eq!(opened.port.state().mtu, 1400);
    assert!(matches!(opened.send(&[&frame(60)]).stopped, Some(StopReason::Down)));
    for round in 0..5 {
        let mut peer = opened.connect();
        peer.send(&frame(60 + round));
        assert_eq!(bytes(&opened.receive(1)[0]), frame(60 + round));
        assert!(opened.send(&[&frame(80)]).stopped.is_none());
        assert_eq!(peer.receive(), frame(80));
        drop(peer);
        opened.wait_for(LinkState::Down);
        assert!(matches!(opened.send(&[&frame(60)]).stopped, Some(StopReason::Down)));
    }
    assert_eq!(opened.port.counters().rx_errors, 0);
}

#[test]
fn a_client_waits_for_its_server_and_returns_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server");
    let mut opened = Opened::at(folder, "server", "?connect=on");
    assert_eq!(opened.port.state().link, LinkState::Down);
    let refused = opened.receiver.poll(&mut Vec::new(), 64);
    assert!(matches!(refused, Err(PortError::Down { .. })), "{refused:?}");
    for round in 0..3 {
        let server = UnixListener::bind(&path).expect("a free path");
        opened.wait_for(LinkState::Up);
        let mut peer = Peer::new(server.accept().expect("the port connects").0);
        peer.send(&frame(60 + round));
        assert_eq!(bytes(&opened.receive(1)[0]), frame(60 + round));
        assert!(opened.send(&[&frame(80)]).stopped.is_none());
        assert_eq!(peer.receive(), frame(80));
        drop((peer, server));
        std::fs::remove_file(&path).expect("is there");
        opened.wait_for(LinkState::Down);
    }
}

#[test]
fn a_client_does_not_touch_the_servers_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server");
    let server = UnixListener::bind(&path).expect("a free path");
    let opened = Opened::at(folder, "server", "?connect=on");
    let Opened { port, receiver, transmitter, folder } = opened;
    drop((port, receiver, transmitter));
    assert!(path.exists());
    drop((server, folder));
}

#[test]
fn a_second_peer_is_refused_and_the_first_stays() {
    let mut opened = Opened::new("");
    let mut first = opened.connect();
    let mut second = Peer::new(UnixStream::connect(opened.path("port")).expect("it listens"));
    assert_eq!(opened.poll().expect("the port lives").len(), 0);
    assert_eq!(second.0.read(&mut [0; 8]).expect("it is closed"), 0);
    first.send(&frame(60));
    assert_eq!(bytes(&opened.receive(1)[0]), frame(60));
    // Once the first has left, another one is welcome, even if it connects before that is noticed.
    drop(first);
    let mut third = Peer::new(UnixStream::connect(opened.path("port")).expect("it listens"));
    third.send(&frame(70));
    assert_eq!(bytes(&opened.receive(1)[0]), frame(70));
}

#[test]
fn the_file_is_private_and_goes_with_the_port() {
    for (options, bits) in [("", 0o600), ("?mode=0660", 0o660), ("?type=datagram", 0o600)] {
        let opened = Opened::new(options);
        let path = opened.path("port");
        let mode = std::fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, bits, "{options}");
        let Opened { port, receiver, transmitter, folder } = opened;
        drop((port, receiver, transmitter));
        assert!(!path.exists(), "{options}");
        drop(folder);
    }
}

#[test]
fn an_unused_socket_is_replaced_and_nothing_else() {
    for kind in ["", "?type=datagram"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("port");
        // The file of a process that was killed.
        if kind.is_empty() {
            drop(UnixListener::bind(&path).expect("a free path"));
        } else {
            drop(std::os::unix::net::UnixDatagram::bind(&path).expect("a free path"));
        }
        assert!(path.exists());
        let port = try_open(&folder, "port", kind).expect("nobody uses it");
        let refused = try_open(&folder, "port", kind).expect_err("it is in use").to_string();
        assert!(refused.contains("is the socket of a running process"), "{refused}");
        assert!(path.exists());
        drop(port);
        std::fs::write(&path, "precious").expect("a file");
        let refused = try_open(&folder, "port", kind).expect_err("it is a file").to_string();
        assert!(refused.contains("exists and is not a socket"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("is there"), b"precious");
    }
}

#[test]
fn a_file_that_replaced_the_ports_own_is_not_removed() {
    let opened = Opened::new("");
    let path = opened.path("port");
    std::fs::remove_file(&path).expect("is there");
    let other = UnixListener::bind(&path).expect("a free path");
    let Opened { port, receiver, transmitter, folder } = opened;
    drop((port, receiver, transmitter));
    assert!(path.exists());
    drop((other, folder));
}

#[test]
fn a_path_that_no_socket_can_have_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for options in ["", "?connect=on", "?type=datagram"] {
        let long = "a".repeat(120);
        let refused = try_open(&folder, &long, options).expect_err("too long").to_string();
        assert!(refused.contains("use the path of the socket: File name too long"), "{refused}");
    }
    let refused = try_open(&folder, "absent/port", "").expect_err("no folder").to_string();
    assert!(refused.contains("create the socket's file (bind)"), "{refused}");
}
