//! The hand-over between threads under loom: all orders in which two CPUs may see each other's
//! writes.
//!
//! The rules are the bridge's own file; only its atomics are loom's. The ring between is the
//! essence of one: a count that is published with release ordering and read with acquire.
#![cfg(target_os = "linux")]

mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

#[path = "../src/handover/protocol.rs"]
mod protocol;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use protocol::{Head, Sleep, WorkerLifetime};
use sync::{AtomicU64, Ordering};

/// A place where a thread sleeps: woken by a token that stays until it is taken, as an eventfd's
/// count does.
struct Bell {
    sleep: Sleep,
    event: loom::sync::Notify,
}

impl Bell {
    fn new() -> Self {
        Bell { sleep: Sleep::new(), event: loom::sync::Notify::new() }
    }

    fn ring(&self) -> bool {
        let wakes = self.sleep.must_be_woken();
        if wakes {
            self.event.notify();
        }
        wakes
    }

    /// Sleeps as a worker does, unless there is work. Loom finds it if nobody ever wakes it.
    fn sleep_unless(&self, has_work: impl Fn() -> bool) {
        self.sleep.fall_asleep();
        if !has_work() {
            self.event.wait();
        }
        self.sleep.awake();
    }
}

/// Tries all orders with at most three switches in mid-work: more find nothing new in models this
/// small, and take minutes.
fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn nobody_sleeps_over_work() {
    bounded(|| {
        let bell = Arc::new(Bell::new());
        let queue = Arc::new(AtomicU64::new(0));
        let producer = {
            let (bell, queue) = (bell.clone(), queue.clone());
            thread::spawn(move || {
                for packets in 1..=2 {
                    queue.store(packets, Ordering::Release);
                    bell.ring();
                }
            })
        };
        let mut taken = 0;
        while taken < 2 {
            let there = queue.load(Ordering::Acquire);
            if there == taken {
                bell.sleep_unless(|| queue.load(Ordering::Acquire) != taken);
            }
            taken = there;
        }
        producer.join().expect("no panic");
    });
}

#[test]
fn of_two_who_have_work_one_rings() {
    loom::model(|| {
        let bell = Arc::new(Bell::new());
        let queues = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        bell.sleep.fall_asleep();
        let producers = [0, 1].map(|index| {
            let (bell, queues) = (bell.clone(), queues.clone());
            thread::spawn(move || {
                queues[index].store(1, Ordering::Release);
                bell.ring()
            })
        });
        let rang = producers.map(|producer| producer.join().expect("no panic"));
        assert_eq!(rang.iter().filter(|rang| **rang).count(), 1, "{rang:?}");
    });
}

/// A flow moves when the head has reached its tail: what the old worker did to the flow's place on
/// the wire must be seen by then. Loom's cell tells if two threads write to it without one of them
/// being after the other.
#[test]
fn a_flow_moves_after_the_send_has_returned() {
    loom::model(|| {
        let head = Arc::new(Head::new());
        let wire = Arc::new(UnsafeCell::new(Vec::new()));
        let worker = {
            let (head, wire) = (head.clone(), wire.clone());
            thread::spawn(move || {
                for number in 1..=2u64 {
                    // SAFETY: nobody else writes before the head has reached 2.
                    wire.with_mut(|wire| unsafe { (*wire).push(number) });
                    head.publish(1);
                }
            })
        };
        // The third packet goes to another worker if the head says that the first two are done
        // with.
        if head.done() >= 2 {
            // SAFETY: the worker has published after its last write, and writes no more.
            wire.with_mut(|wire| unsafe { (*wire).push(3) });
        }
        worker.join().expect("no panic");
        // SAFETY: the worker has ended.
        let sent = wire.with(|wire| unsafe { (*wire).clone() });
        assert!(sent.is_sorted(), "{sent:?}");
    });
}

/// A receive queue that waits for the head is told, or sees it by itself.
#[test]
fn who_waits_for_the_head_does_not_wait_for_ever() {
    bounded(|| {
        let head = Arc::new(Head::new());
        let (watch, bell) = (Arc::new(Sleep::new()), Arc::new(Bell::new()));
        let worker = {
            let (head, watch, bell) = (head.clone(), watch.clone(), bell.clone());
            thread::spawn(move || {
                head.publish(1);
                if watch.must_be_woken() {
                    // As `Doorbell::force`: whether or not its owner is known to sleep.
                    bell.event.notify();
                }
            })
        };
        while head.done() == 0 {
            watch.fall_asleep();
            bell.sleep_unless(|| head.done() != 0);
        }
        worker.join().expect("no panic");
    });
}

/// A worker that is not needed any more ends, while a receive queue gives it another backlog:
/// either it empties that, or the queue is told to look for another.
#[test]
fn nothing_is_given_to_who_has_ended() {
    bounded(|| {
        let lifetime = Arc::new(WorkerLifetime::new());
        let (given, emptied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let worker = {
            let (lifetime, given, emptied) = (lifetime.clone(), given.clone(), emptied.clone());
            thread::spawn(move || {
                let mut done = 0;
                while !lifetime.end(|| given.load(Ordering::Acquire) == done) {
                    done = given.load(Ordering::Acquire);
                    emptied.store(done, Ordering::Release);
                }
            })
        };
        let mut taken = 0;
        for _ in 0..2 {
            let give = || {
                given.store(taken + 1, Ordering::Release);
                true
            };
            taken += u64::from(lifetime.give(give));
        }
        worker.join().expect("no panic");
        assert_eq!(
            (given.load(Ordering::Acquire), emptied.load(Ordering::Acquire)),
            (taken, taken)
        );
        assert!(!lifetime.give(|| panic!("it has ended")));
    });
}
