//! Tests that a vhost-user port closes the descriptors that it gets. They count those of their
//! process, and so run one after another in a process of their own.
#![cfg(target_os = "linux")]

#[path = "../vhost/bench.rs"]
mod bench;
#[path = "../support/frames.rs"]
mod frames;

use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use superpacket_front_end::request;

use bench::{Bench, pipes, prepared, words};

/// Waits until no other test runs, and opens a port with these options, which has served a guest.
/// Returns the port, the number of open descriptors, and what keeps other tests waiting.
fn opened(options: &str) -> (Bench, usize, MutexGuard<'static, ()>) {
    static RUNNING: Mutex<()> = Mutex::new(());
    let alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = Bench::new(options);
    bench.serves_the_next();
    assert!(bench.is_left());
    (bench, open_descriptors(), alone)
}

/// Returns the number of descriptors that this process has open.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("it exists").count()
}

/// Waits until no more descriptors are open than before.
fn are_closed(before: usize) -> bool {
    (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        open_descriptors() <= before
    })
}

#[test]
fn descriptors_of_guests_that_left_are_closed() {
    let (mut bench, before, _alone) = opened("queues=2");
    for _ in 0..10 {
        bench.serves_the_next();
    }
    assert!(bench.is_left());
    let after = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        open_descriptors()
    });
    assert!(after.into_iter().any(|after| after <= before));
}

/// CVE-2019-14818: requests that are repeated, and descriptors with those that need none.
#[test]
fn attack_2_repeated_sizes_and_superfluous_descriptors() {
    let (mut bench, before, _alone) = opened("");
    for count in [1, 2, 31, 32] {
        let files = pipes(count);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        for request in [
            request::GET_FEATURES,
            request::SET_OWNER,
            request::SET_VRING_NUM,
            request::SET_VRING_BASE,
            request::SET_VRING_ENABLE,
            request::SET_VRING_CALL,
            request::SET_VRING_KICK,
            request::SET_MEM_TABLE,
            request::ADD_MEM_REG,
            request::SET_INFLIGHT_FD,
        ] {
            let guest = prepared(&bench);
            let _ = guest.front_end.send(request, &words(&[0, 8]), &files);
            drop(guest);
        }
    }
    for _ in 0..3 {
        let guest = prepared(&bench);
        for _ in 0..1000 {
            guest.front_end.demand(request::SET_VRING_NUM, &words(&[0, 256]), &[]).expect("same");
        }
    }
    assert!(are_closed(before), "{} descriptors, and {before} before", open_descriptors());
    bench.serves_the_next();
}

/// CVE-2020-10726 and CVE-2022-0669.
#[test]
fn attack_6_descriptors_of_inflight_messages_are_closed() {
    let (mut bench, before, _alone) = opened("");
    let area = |queues: u16, size: u16, bytes: u64| {
        let mut body: Vec<u8> = [bytes, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend([queues, size, 0, 0].iter().flat_map(|word| word.to_ne_bytes()));
        body
    };
    let guest = prepared(&bench);
    for _ in 0..100 {
        let reply = guest.front_end.ask(request::GET_INFLIGHT_FD, &area(2, 256, 0), &[]);
        let reply = reply.expect("an answer");
        assert_eq!(reply.files.len(), 1);
        assert!(reply.number() >= 2 * (16 + 16 * 256), "{} bytes", reply.number());
        let body = area(2, 256, reply.number());
        guest
            .front_end
            .demand(request::SET_INFLIGHT_FD, &body, &[reply.files[0].as_fd()])
            .expect("it was given out");
    }
    drop(guest);
    for (request, body, files) in [
        (request::SET_INFLIGHT_FD, area(2, 256, 100), 1),
        (request::SET_INFLIGHT_FD, area(2, 256, 1 << 20), 0),
        (request::SET_INFLIGHT_FD, area(2, 256, 1 << 20), 2),
        (request::SET_INFLIGHT_FD, area(3, 256, 1 << 20), 1),
        (request::GET_INFLIGHT_FD, area(3, 256, 0), 0),
        (request::GET_INFLIGHT_FD, area(2, 0x8001, 0), 0),
        (request::GET_INFLIGHT_FD, area(0, 0, 0), 0),
        (request::GET_INFLIGHT_FD, area(2, 256, 0), 1),
    ] {
        let guest = prepared(&bench);
        let files = pipes(files);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let _ = guest.front_end.send(request, &body, &files);
        assert!(guest.front_end.is_closed(), "{request} {body:?}");
    }
    assert!(are_closed(before), "{} descriptors, and {before} before", open_descriptors());
    bench.serves_the_next();
}
