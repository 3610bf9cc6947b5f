//! Front ends that send wrong messages.

use std::os::fd::AsFd;
use std::time::Duration;

use superpacket_front_end::{FrontEnd, Guest, GuestSettings, MemoryRegion, USER, request};

use crate::bench::{Bench, pipes, prepared, words};
use crate::frames::{bytes, frame};

/// Lets a front end that has agreed on features do something, then checks that the connection is
/// ended and the port serves the next one.
fn is_refused(what: &str, attack: impl FnOnce(&mut Guest)) {
    is_refused_by("", what, attack);
}

fn is_refused_by(options: &str, what: &str, attack: impl FnOnce(&mut Guest)) {
    let mut bench = Bench::new(options);
    let mut guest = prepared(&bench);
    attack(&mut guest);
    assert!(guest.front_end.is_closed(), "{what}: the connection is ended");
    bench.serves_the_next();
    assert_eq!(bench.port.counters().rx_errors, 1, "{what}");
}

/// CVE-2020-10722: the log of changed pages is not offered, so that nothing can overflow in it.
#[test]
fn attack_3_a_log_is_not_offered() {
    let log: Vec<u8> = [u64::MAX, 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
    is_refused("log", |guest| {
        let file = MemoryRegion::new(0, 4096).file;
        let _ = guest.front_end.send(request::SET_LOG_BASE, &log, &[file.as_fd()]);
    });
    // Nor are its features.
    is_refused("F_LOG_ALL", |guest| {
        let features = (guest.features | 1 << 26).to_ne_bytes();
        let _ = guest.front_end.send(request::SET_FEATURES, &features, &[]);
    });
    is_refused("LOG_SHMFD", |guest| {
        let features = 2_u64.to_ne_bytes();
        let _ = guest.front_end.send(request::SET_PROTOCOL_FEATURES, &features, &[]);
    });
    // A region whose offset and length overflow.
    for description in [
        [0, u64::MAX, USER, 2],
        [u64::MAX, 4096, USER, 0],
        [0, 4096, u64::MAX, 0],
        [0, 4096, USER, u64::MAX],
        [0, 1 << 62, USER, 0],
        [0, 4097, USER, 0],
        [0, 4096, USER, 1],
        [0, 0, USER, 0],
    ] {
        is_refused("region", |guest| {
            let mut body = words(&[1, 0]);
            body.extend(description.iter().flat_map(|word: &u64| word.to_ne_bytes()));
            let file = MemoryRegion::new(0, 4096).file;
            let _ = guest.front_end.send(request::SET_MEM_TABLE, &body, &[file.as_fd()]);
        });
    }
}

/// CVE-2020-10723.
#[test]
fn attack_4_a_ring_that_does_not_exist() {
    for index in [2, 3, 255, 256, u32::MAX] {
        for request in [
            request::SET_VRING_NUM,
            request::SET_VRING_BASE,
            request::GET_VRING_BASE,
            request::SET_VRING_ENABLE,
        ] {
            is_refused("state", |guest| {
                let _ = guest.front_end.send(request, &words(&[index, 1]), &[]);
            });
        }
        is_refused("address", |guest| {
            let mut body = guest.ring_addresses(0);
            body[..4].copy_from_slice(&index.to_ne_bytes());
            let _ = guest.front_end.send(request::SET_VRING_ADDR, &body, &[]);
        });
        let number = u64::from(index.min(255));
        for request in [request::SET_VRING_KICK, request::SET_VRING_CALL, request::SET_VRING_ERR] {
            is_refused("descriptor", |guest| {
                let kick = guest.queues[0].kick.as_fd();
                let _ = guest.front_end.send(request, &number.to_ne_bytes(), &[kick]);
            });
        }
    }
}

/// CVE-2026-5747 and CVE-2026-50626.
#[test]
fn attack_10_a_ring_that_is_changed_while_it_runs() {
    for size in [1, 512, 0x8000, 0x1_0000, u32::MAX, 0] {
        is_refused("size", |guest| {
            guest.start().expect("accepted");
            let _ = guest.front_end.send(request::SET_VRING_NUM, &words(&[1, size]), &[]);
        });
    }
    is_refused("address", |guest| {
        guest.start().expect("accepted");
        let _ = guest.front_end.send(request::SET_VRING_ADDR, &guest.ring_addresses(0), &[]);
    });
    is_refused("base", |guest| {
        guest.start().expect("accepted");
        let _ = guest.front_end.send(request::SET_VRING_BASE, &words(&[1, 5]), &[]);
    });
    is_refused("features", |guest| {
        guest.start().expect("accepted");
        let fewer = (guest.features & !1).to_ne_bytes();
        let _ = guest.front_end.send(request::SET_FEATURES, &fewer, &[]);
    });
}

#[test]
fn attack_10_sizes_that_no_ring_has() {
    for size in [0, 3, 255, 0x1_0000, 0x8001, u32::MAX] {
        is_refused("size", |guest| {
            guest.pass_memory().expect("accepted");
            let front_end = &guest.front_end;
            front_end.demand(request::SET_VRING_NUM, &words(&[1, size]), &[]).expect("noted");
            let addresses = guest.ring_addresses(1);
            front_end.demand(request::SET_VRING_ADDR, &addresses, &[]).expect("noted");
            front_end.demand(request::SET_VRING_ENABLE, &words(&[1, 1]), &[]).expect("noted");
            let kick = guest.queues[1].kick.as_fd();
            let _ = front_end.send(request::SET_VRING_KICK, &1_u64.to_ne_bytes(), &[kick]);
        });
    }
    // Rings without memory, or beyond it.
    is_refused("no memory", |guest| {
        assert!(guest.start_queue(1).is_err());
    });
    is_refused("beyond", |guest| {
        guest.memory.regions[0].length = 0x10_0000;
        guest.pass_memory().expect("accepted");
        assert!(guest.start_queue(1).is_err());
    });
}

/// CVE-2021-3748: frames that were taken stay valid whatever becomes of the memory.
#[test]
fn attack_12_memory_that_goes_while_frames_are_lent() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let header = vec![0; guest.header_length()];
    for length in 100..120 {
        assert!(guest.send(0, &header, &frame(length)));
    }
    let packets = bench.receive(0, 20);
    // The rings are not in the new memory.
    guest.memory.regions[0] = MemoryRegion::new(1 << 32, 4096);
    assert!(guest.pass_memory().is_err());
    assert!(guest.front_end.is_closed() && bench.is_left());
    drop(guest);
    for (packet, length) in packets.iter().zip(100..) {
        assert_eq!(bytes(packet), frame(length));
    }
    assert_eq!(packets.len(), 20);
    drop(packets);
    bench.serves_the_next();
}

/// A region is removed while its rings run and other threads use them.
#[test]
fn attack_12_memory_that_goes_under_traffic() {
    for _ in 0..20 {
        let mut bench = Bench::new("");
        let mut guest = bench.guest(GuestSettings::default());
        let header = vec![0; guest.header_length()];
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                for _ in 0..50 {
                    guest.send(0, &header, &frame(1000));
                }
                guest.memory.regions[0] = MemoryRegion::new(1 << 32, 4096);
                let _ = guest.pass_memory();
                drop(guest);
            });
            let mut packets = Vec::new();
            while !sender.is_finished() {
                bench.poll(0, &mut packets);
                bench.send_plain(&frame(1000));
                assert!(packets.drain(..).all(|packet| bytes(&packet) == frame(1000)));
            }
        });
        assert!(bench.is_left());
    }
}

/// A file that is shortened while it is mapped would end this process by SIGBUS.
#[test]
fn attack_14_a_file_that_can_be_cut_short() {
    let unsealed = |guest: &mut Guest| {
        let length = guest.memory.regions[0].length;
        guest.memory.regions[0] = MemoryRegion::unsealed(0, length);
        let _ = guest.start();
    };
    is_refused("unsealed", unsealed);
    is_refused("no memory at all", |guest| {
        let mut body = words(&[1, 0]);
        body.extend([0, 4096, USER, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()));
        let pipe = pipes(1);
        let _ = guest.front_end.send(request::SET_MEM_TABLE, &body, &[pipe[0].as_fd()]);
    });
    // The user may trust the front end.
    let mut bench = Bench::new("memory=any");
    let mut guest = prepared(&bench);
    let length = guest.memory.regions[0].length;
    guest.memory.regions[0] = MemoryRegion::unsealed(0, length);
    guest.start().expect("accepted");
    let header = vec![0; guest.header_length()];
    assert!(guest.send(0, &header, &frame(60)));
    assert_eq!(bench.receive(0, 1).len(), 1);
}

/// Descriptors on which a read, a write or a wait may never return.
#[test]
fn notifications_that_are_no_eventfds() {
    let pipe = rustix::pipe::pipe().expect("a pipe");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let file = MemoryRegion::new(0, 4096).file;
    for descriptor in [pipe.0.as_fd(), pipe.1.as_fd(), socket.as_fd(), file.as_fd()] {
        for request in [request::SET_VRING_KICK, request::SET_VRING_CALL] {
            is_refused("notification", |guest| {
                let _ = guest.front_end.send(request, &1_u64.to_ne_bytes(), &[descriptor]);
            });
        }
    }
}

/// A counter that is full would block who adds to it.
#[test]
fn a_notification_that_is_full_blocks_nobody() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let full = (u64::MAX - 1).to_ne_bytes();
    rustix::io::write(&guest.queues[0].call, &full).expect("it is empty");
    rustix::io::write(&guest.queues[1].call, &full).expect("it is empty");
    let header = vec![0; guest.header_length()];
    assert!(guest.send(0, &header, &frame(60)));
    assert_eq!(bench.receive(0, 1).len(), 1);
    assert!(bench.send_plain(&frame(60)));
}

#[test]
fn messages_that_are_cut_or_mean_nothing() {
    let message = |request: u32, flags: u32, length: u32| words(&[request, flags, length]);
    for (what, bytes) in [
        ("unknown request", message(99, 1, 0)),
        ("no request", message(0, 1, 0)),
        ("no version", message(1, 0, 0)),
        ("a reply", message(1, 5, 0)),
        ("too long", message(5, 1, 0x1001)),
        ("endless", message(5, 1, u32::MAX)),
        ("reserved flags", message(1, 0xf1, 0)),
    ] {
        is_refused(what, |guest| {
            let _ = guest.front_end.send_bytes(&bytes, &[]);
        });
    }
    for length in [0, 1, 7, 9, 100] {
        is_refused("wrong length", |guest| {
            let _ = guest.front_end.send(request::SET_FEATURES, &vec![0; length], &[]);
        });
    }
    // Tables that claim more, or fewer, than they have.
    for regions in [0, 2, 3, 33, u32::MAX] {
        is_refused("regions", |guest| {
            let mut body = words(&[regions, 0]);
            body.extend([0, 4096, USER, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()));
            let file = MemoryRegion::new(0, 4096).file;
            let _ = guest.front_end.send(request::SET_MEM_TABLE, &body, &[file.as_fd()]);
        });
    }
}

/// Front ends that stop in the middle of a message, or leave while others wait.
#[test]
fn a_front_end_that_stops_in_a_message_does_not_keep_the_port_from_closing() {
    for sent in [1, 11, 12, 15] {
        let bench = Bench::new("");
        let guest = prepared(&bench);
        let message = [words(&[request::SET_FEATURES, 1, 8]), vec![0; 8]].concat();
        guest.front_end.send_bytes(&message[..sent], &[]).expect("it listens");
        std::thread::sleep(Duration::from_millis(20));
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(bench);
            let _ = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(10)).expect("the port closes");
        assert!(guest.front_end.is_closed());
    }
}

#[test]
fn a_second_front_end_is_refused_while_the_first_is_served() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let second = FrontEnd::connect(&bench.path).expect("it listens");
    assert!(second.is_closed());
    let header = vec![0; guest.header_length()];
    assert!(guest.send(0, &header, &frame(60)));
    assert_eq!(bench.receive(0, 1).len(), 1);
}
