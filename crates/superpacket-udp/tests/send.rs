//! Tests of senders with a socket in memory, whose failures the tests choose.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use superpacket_udp::{
    Destination, EcnCodepoint, Refusal, RefusalCause, SendDatagrams, Sender, Transmit,
};

const INVALID: i32 = 22;
const IO: i32 = 5;
const NO_BUFFERS: i32 = 105;
const UNREACHABLE: i32 = 101;
const TOO_LONG: i32 = 90;

/// The datagrams that one call has sent.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    destination: Destination,
    contents: Vec<u8>,
    segment_size: Option<usize>,
}

type Verdict = Box<dyn FnMut(usize, &Sent) -> Option<io::Error>>;

/// A socket that records sent datagrams.
struct Memory(Mutex<State>);

struct State {
    sent: Vec<Sent>,
    tried: usize,
    most: usize,
    waits: usize,
    /// Length of the longest datagram that fits the path MTU, if known.
    fitting: usize,
    told_too_long: bool,
    verdict: Verdict,
}

impl Memory {
    fn new(verdict: impl FnMut(usize, &Sent) -> Option<io::Error> + 'static) -> Self {
        Memory(Mutex::new(State {
            sent: Vec::new(),
            tried: 0,
            most: 64,
            waits: 0,
            fitting: usize::MAX,
            told_too_long: false,
            verdict: Box::new(verdict),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// Returns the sent datagrams, in order.
    fn datagrams(&self) -> Vec<(Destination, Vec<u8>)> {
        let cut = |sent: &Sent| {
            let destination = sent.destination;
            sent.contents
                .chunks(sent.segment_size.unwrap_or(usize::MAX))
                .map(move |datagram| (destination, datagram.to_vec()))
                .collect()
        };
        self.state().sent.iter().flat_map(|sent| -> Vec<_> { cut(sent) }).collect()
    }

    /// Returns the number of datagrams per successful call.
    fn runs(&self) -> Vec<usize> {
        self.state()
            .sent
            .iter()
            .map(|sent| sent.contents.len().div_ceil(sent.segment_size.unwrap_or(usize::MAX)))
            .collect()
    }
}

impl SendDatagrams for &Memory {
    fn send(&self, transmit: &Transmit<'_>, _: &mut Vec<u8>) -> io::Result<()> {
        let sent = Sent {
            destination: Destination {
                addr: transmit.destination,
                ecn: transmit.ecn,
                src_ip: transmit.src_ip,
            },
            contents: transmit.contents.iter().flat_map(|slice| slice.iter().copied()).collect(),
            segment_size: transmit.segment_size,
        };
        let mut state = self.state();
        let number = state.tried;
        state.tried += 1;
        if let Some(error) = (state.verdict)(number, &sent) {
            return Err(error);
        }
        state.sent.push(sent);
        Ok(())
    }

    fn max_segments(&self) -> usize {
        self.state().most
    }

    fn wait_writable(&self) -> io::Result<()> {
        self.state().waits += 1;
        Ok(())
    }

    fn fits(&self, _: &Destination, length: usize) -> bool {
        length <= self.state().fitting
    }

    fn refuse(&self, refusal: &Refusal) -> bool {
        match refusal.cause {
            RefusalCause::TooLong => !std::mem::replace(&mut self.state().told_too_long, true),
            _ => std::mem::replace(&mut self.state().most, 1) != 1,
        }
    }
}

fn addr(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 51_820))
}

fn datagram(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|index| (number * 31 + index * 7) as u8).collect()
}

/// Returns datagrams to several destinations, of several sizes.
fn datagrams() -> Vec<(Destination, Vec<u8>)> {
    let ce = Destination { ecn: Some(EcnCodepoint::Ce), ..addr(1).into() };
    let from = Destination { src_ip: Some([192, 0, 2, 9].into()), ..addr(1).into() };
    let runs = [
        (addr(1).into(), 45, 1400),
        (addr(1).into(), 1, 300),
        (addr(2).into(), 5, 1400),
        (ce, 3, 100),
        (from, 3, 100),
        (addr(1).into(), 80, 90),
    ];
    runs.into_iter()
        .flat_map(|(to, count, size)| (0..count).map(move |number| (to, datagram(number, size))))
        .collect()
}

fn push_all<'m>(
    memory: &'m Memory,
    datagrams: &[(Destination, Vec<u8>)],
) -> Sender<&'m Memory, Vec<u8>> {
    let mut sender = Sender::new(memory);
    datagrams.iter().for_each(|(to, datagram)| sender.push(*to, datagram.clone()));
    sender
}

#[test]
fn runs_of_one_destination_and_length_leave_in_one_call() {
    let memory = Memory::new(|_, _| None);
    let mut sender = push_all(&memory, &datagrams());
    assert_eq!(sender.len(), 137);
    sender.flush().expect("all is taken");
    assert_eq!(memory.datagrams(), datagrams());
    // The 46th datagram is shorter, so it ends the first run. A run has at most 64.
    assert_eq!(memory.runs(), [46, 5, 3, 3, 64, 16]);
    let counters = sender.counters();
    assert_eq!((counters.datagrams, counters.sends, counters.runs), (137, 6, 6));
    assert_eq!(
        counters.bytes,
        datagrams().iter().map(|(_, datagram)| datagram.len() as u64).sum::<u64>()
    );
    assert!(sender.is_empty());
}

#[test]
fn what_does_not_fit_a_run_begins_another() {
    let cases: [(&[usize], &[usize]); 6] = [
        (&[100], &[1]),
        (&[100, 100, 50, 50], &[3, 1]),
        (&[50, 100, 100], &[1, 2]),
        (&[100, 0, 100], &[1, 0, 1]),
        (&[0, 0], &[0, 0]),
        (&[30_000, 30_000, 30_000], &[2, 1]),
    ];
    for (sizes, runs) in cases {
        let memory = Memory::new(|_, _| None);
        let given: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(number, size)| (addr(1).into(), datagram(number, *size)))
            .collect();
        push_all(&memory, &given).flush().expect("all is taken");
        assert_eq!(memory.runs(), runs, "{sizes:?}");
        let bytes: Vec<u8> =
            memory.state().sent.iter().flat_map(|sent| sent.contents.clone()).collect();
        assert_eq!(
            bytes,
            given.iter().flat_map(|(_, datagram)| datagram.clone()).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_refused_run_is_sent_one_by_one_and_switched_off_once() {
    for errno in [INVALID, IO] {
        let memory = Memory::new(move |_, sent| {
            sent.segment_size.map(|_| io::Error::from_raw_os_error(errno))
        });
        let mut sender = push_all(&memory, &datagrams());
        let told = Arc::new(Mutex::new(Vec::new()));
        let notices = Arc::clone(&told);
        sender
            .set_notice(move |refusal| notices.lock().expect("not poisoned").push(refusal.clone()));
        sender.flush().expect("single datagrams are taken");
        assert_eq!(memory.datagrams(), datagrams());
        let told = told.lock().expect("not poisoned");
        assert_eq!(told.len(), 1);
        assert_eq!(
            (told[0].datagrams, told[0].segment_size, told[0].errno),
            (46, 1400, Some(errno))
        );
        assert!(
            told[0].to_string().contains("46 datagrams of 1400 bytes to 192.0.2.1:51820"),
            "{}",
            told[0]
        );
        assert_eq!(
            (sender.counters().refused, sender.counters().runs, sender.counters().datagrams),
            (1, 0, 137)
        );
    }
}

/// A kernel on a path for datagrams of at most 1,000 bytes. It refuses runs of longer ones with
/// this error, and single ones unless it fragments them.
fn narrow(errno: i32, fragments: bool) -> Memory {
    let memory = Memory::new(move |_, sent| match sent.segment_size {
        Some(size) if size > 1000 => Some(io::Error::from_raw_os_error(errno)),
        None if sent.contents.len() > 1000 && !fragments => {
            Some(io::Error::from_raw_os_error(TOO_LONG))
        }
        _ => None,
    });
    memory.state().fitting = 1000;
    memory
}

#[test]
fn a_run_above_the_path_mtu_is_sent_one_by_one_and_runs_stay_on() {
    // Linux before 6.14 returns EINVAL, later versions EMSGSIZE.
    for errno in [INVALID, TOO_LONG] {
        let memory = narrow(errno, true);
        let mut sender = push_all(&memory, &datagrams());
        let told = Arc::new(Mutex::new(Vec::new()));
        let notices = Arc::clone(&told);
        sender
            .set_notice(move |refusal| notices.lock().expect("not poisoned").push(refusal.clone()));
        sender.flush().expect("single datagrams are taken");
        assert_eq!(memory.datagrams(), datagrams(), "nothing is lost");
        assert_eq!(memory.state().most, 64, "runs stay on");
        let told = told.lock().expect("not poisoned");
        assert_eq!(told.len(), 1, "two runs were too long");
        assert_eq!(
            (told[0].cause, told[0].datagrams, told[0].segment_size),
            (RefusalCause::TooLong, 46, 1400)
        );
        assert!(
            told[0]
                .to_string()
                .starts_with("46 datagrams of 1400 bytes to 192.0.2.1:51820 exceed the path MTU"),
            "{}",
            told[0]
        );
        let counters = sender.counters();
        assert_eq!(
            (counters.too_long, counters.refused, counters.runs, counters.datagrams),
            (2, 0, 4, 137)
        );
    }
}

#[test]
fn a_tail_that_fits_does_not_prove_that_runs_are_refused() {
    for known in [true, false] {
        let memory = narrow(INVALID, false);
        // If the path MTU is not known, the results for the single datagrams decide.
        memory.state().fitting = if known { 1000 } else { usize::MAX };
        let run: Vec<_> = [1400, 1400, 1400, 300]
            .into_iter()
            .map(|size| (addr(1).into(), datagram(1, size)))
            .collect();
        let mut sender = push_all(&memory, &run);
        assert_eq!(sender.flush().expect_err("three are too long").raw_os_error(), Some(TOO_LONG));
        assert_eq!(
            (memory.datagrams(), memory.state().most),
            (run[3..].to_vec(), 64),
            "runs stay on"
        );
        (0..40).for_each(|number| sender.push(addr(1), datagram(number, 1000)));
        sender.flush().expect("they fit");
        assert_eq!((sender.counters().runs, sender.counters().rejected), (1, 3));
    }
}

#[test]
fn a_refused_run_that_fits_proves_it_after_one_that_was_too_long() {
    for errno in [INVALID, IO] {
        let memory = Memory::new(move |_, sent| {
            sent.segment_size.map(|_| io::Error::from_raw_os_error(errno))
        });
        memory.state().fitting = 1000;
        let mut sender = push_all(&memory, &datagrams());
        sender.flush().expect("single datagrams are taken");
        assert_eq!(memory.datagrams(), datagrams());
        let counters = sender.counters();
        assert_eq!(
            (counters.too_long, counters.refused, counters.runs),
            (2, 1, 0),
            "the run of 100 bytes proved it"
        );
        assert_eq!(memory.state().most, 1);
    }
}

#[test]
fn a_destination_that_nothing_reaches_costs_its_own_datagrams_alone() {
    for errno in [INVALID, UNREACHABLE] {
        let memory = Memory::new(move |_, sent| {
            (sent.destination.addr == addr(2)).then(|| io::Error::from_raw_os_error(errno))
        });
        let mut sender = push_all(&memory, &datagrams());
        assert_eq!(sender.flush().expect_err("one is out of reach").raw_os_error(), Some(errno));
        let mut expected = datagrams();
        expected.retain(|(to, _)| to.addr != addr(2));
        assert_eq!(memory.datagrams(), expected);
        assert_eq!(
            (sender.counters().rejected, sender.len(), memory.state().most),
            (5, 0, 64),
            "runs stay on"
        );
        sender.flush().expect("it was told once");
    }
}

#[test]
fn a_full_socket_loses_and_repeats_nothing_wherever_it_is_full() {
    for refuses in [false, true] {
        let calls = if refuses { 138 } else { 6 };
        for full_at in 0..calls {
            for error in [
                io::Error::from(io::ErrorKind::WouldBlock),
                io::Error::from_raw_os_error(NO_BUFFERS),
            ] {
                let kind = error.kind();
                let mut error = Some(error);
                let memory = Memory::new(move |number, sent| {
                    if number == full_at {
                        error.take()
                    } else {
                        (refuses && sent.segment_size.is_some())
                            .then(|| io::Error::from_raw_os_error(INVALID))
                    }
                });
                let mut sender = push_all(&memory, &datagrams());
                assert_eq!(
                    sender.try_flush().expect_err("it is full").kind(),
                    kind,
                    "full at {full_at}"
                );
                let late = (addr(7).into(), datagram(7, 77));
                sender.push(late.0, late.1.clone());
                sender.flush().expect("there is room");
                let mut expected = datagrams();
                expected.push(late);
                assert!(memory.datagrams() == expected, "full at {full_at}, refuses: {refuses}");
                assert_eq!(sender.counters().full, 1);
            }
        }
    }
}

#[test]
fn flush_waits_for_room_and_what_is_cleared_is_not_sent() {
    let memory =
        Memory::new(|number, _| (number % 2 == 0).then(|| io::ErrorKind::WouldBlock.into()));
    let mut sender = push_all(&memory, &datagrams());
    sender.flush().expect("there is room in the end");
    assert_eq!((memory.datagrams() == datagrams(), memory.state().waits), (true, 6));
    sender.push(addr(1), datagram(1, 10));
    assert!(sender.try_flush().is_err());
    assert_eq!((sender.clear(), sender.len()), (1, 0));
    sender.flush().expect("nothing is left");
    assert_eq!(memory.datagrams().len(), 137);
}

#[test]
fn a_lossy_flush_leaves_nothing_for_the_next() {
    let memory =
        Memory::new(|number, _| (number == 1).then(|| io::Error::from_raw_os_error(NO_BUFFERS)));
    let mut sender = push_all(&memory, &datagrams());
    assert_eq!(
        sender.flush_lossy().expect_err("there is no memory").raw_os_error(),
        Some(NO_BUFFERS)
    );
    assert_eq!((sender.len(), memory.state().sent.len()), (0, 1));
    sender.push(addr(1), datagram(1, 10));
    sender.flush_lossy().expect("there is memory");
    assert_eq!(memory.state().sent.len(), 2);
}
