//! Tests of writers.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use superpacket::{Framing, GsoKind, Reason};
use superpacket_traffic::frame::Frame;
use superpacket_traffic::random::Random;
use superpacket_tun::{IpNet, Offloads, OrderKey, Refusal, Switches, Writer};

use crate::memory::{DOWN, INVALID, Memory, by_flow, in_turn, is_super_packet, run};

type MemoryWriter<'m> = Writer<&'m Memory, Vec<u8>>;

fn writer(memory: &Memory) -> MemoryWriter<'_> {
    Writer::new(memory, Some(Framing::TUN), Switches::new(Offloads::ALL))
}

fn shared_writer(memory: &Arc<Memory>) -> Writer<Arc<Memory>, Vec<u8>> {
    Writer::new(Arc::clone(memory), Some(Framing::TUN), Switches::new(Offloads::ALL))
}

fn write(writer: &mut MemoryWriter<'_>, packets: &[Vec<u8>]) -> io::Result<()> {
    packets.iter().for_each(|packet| writer.push(packet.clone()));
    writer.flush()
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[test]
fn packets_of_a_flow_leave_merged_and_in_order() {
    let (memory, packets) = (Memory::default(), in_turn());
    let mut writer = writer(&memory);
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(by_flow(&memory.packets()), by_flow(&packets));
    let counters = *writer.counters();
    assert_eq!(
        (counters.packets, counters.bytes),
        (160, packets.iter().map(|packet| packet.len() as u64).sum())
    );
    assert_eq!((counters.writes, counters.super_packets), (memory.state().written.len() as u64, 4));
    assert_eq!(
        (counters.separated, counters.refused, counters.rejected, counters.full),
        (0, 0, 0, 0)
    );
    assert!(writer.is_empty() && writer.aggregation().balanced());
    assert_eq!(writer.aggregation().reason(Reason::PollEnd), 4);
}

#[test]
fn packets_that_overtook_each_other_merge_where_it_is_known_when_they_were_sent() {
    let packets = run(Frame::tcp4(1, 1348));
    let swapped = |writer: &mut MemoryWriter<'_>,
                   push: fn(&mut MemoryWriter<'_>, Vec<u8>, OrderKey)| {
        for pair in (0..packets.len()).collect::<Vec<_>>().chunks(2) {
            pair.iter().rev().for_each(|&number| {
                push(writer, packets[number].clone(), OrderKey::new(1, number as u64))
            });
        }
        writer.flush().expect("the device takes all");
    };
    let as_they_came = Memory::default();
    swapped(&mut writer(&as_they_came), |writer, packet, _| writer.push(packet));
    assert_eq!(as_they_came.state().written.len(), 40, "none follows the one before it");

    let memory = Memory::default();
    let mut writer = writer(&memory);
    for time in 1..=2 {
        swapped(&mut writer, |writer, packet, key| writer.push_in_order(packet, key));
        assert_eq!(memory.state().written.len(), time);
        assert_eq!(memory.packets()[40 * (time - 1)..], packets);
    }
    // Packets of another stream, and packets without a key, stay at their places.
    let (other, another) = (run(Frame::udp4(1200)), run(Frame::udp6(1180)));
    writer.push(other[0].clone());
    writer.push_in_order(packets[1].clone(), OrderKey::new(1, 1));
    writer.push_in_order(another[1].clone(), OrderKey::new(2, 0));
    writer.push(other[1].clone());
    writer.push_in_order(packets[0].clone(), OrderKey::new(1, 0));
    writer.push_in_order(another[0].clone(), OrderKey::new(2, 1));
    writer.flush().expect("the device takes all");
    let last = memory.packets().split_off(80);
    assert_eq!(
        by_flow(&last),
        by_flow(&[&other[..2], &packets[..2], &[another[1].clone(), another[0].clone()]].concat())
    );
    // Clearing removes the keys too.
    writer.push_in_order(packets[1].clone(), OrderKey::new(1, 1));
    assert_eq!(writer.clear(), 1);
    write(&mut writer, &[packets[3].clone(), packets[2].clone()]).expect("the device takes all");
    assert_eq!(memory.packets()[86..], [packets[3].clone(), packets[2].clone()]);
}

#[test]
fn a_lone_packet_leaves_as_it_is() {
    let memory = Memory::default();
    let packet = Frame::tcp4(1, 700).at_ip().to_bytes();
    let mut writer = writer(&memory);
    write(&mut writer, std::slice::from_ref(&packet)).expect("the device takes it");
    assert_eq!(memory.state().written, [[&[0; 10][..], &packet].concat()]);
    writer.flush().expect("nothing is left");
    assert_eq!(memory.state().written.len(), 1);
}

#[test]
fn no_write_has_more_slices_than_the_kernel_takes() {
    let memory = Memory::default();
    let packets: Vec<_> = Frame::tcp6(1, 8).at_ip().run(5000).iter().map(Frame::to_bytes).collect();
    write(&mut writer(&memory), &packets).expect("the device takes all");
    assert_eq!(memory.state().most_slices, 1024);
    assert_eq!(memory.packets(), packets);
}

/// Refuses super-packets, like kernels that announce them and do not accept them.
fn refuse_super_packets(_: usize, written: &[u8]) -> Option<io::Error> {
    is_super_packet(written).then(|| errno(INVALID))
}

#[test]
fn what_the_device_refuses_is_written_apart_and_switched_off_once() {
    let (memory, packets) = (Memory::judged(refuse_super_packets), in_turn());
    let mut writer = writer(&memory);
    let told = Arc::new(Mutex::new(Vec::<Refusal>::new()));
    let notices = Arc::clone(&told);
    writer.set_notice(move |refusal| notices.lock().expect("not poisoned").push(refusal.clone()));
    for round in 1..=3 {
        write(&mut writer, &packets).expect("single packets are taken");
        assert_eq!(memory.state().written.len(), round * packets.len());
    }
    let written = memory.packets();
    for round in written.chunks(packets.len()) {
        assert_eq!(by_flow(round), by_flow(&packets));
    }
    let told = told.lock().expect("not poisoned");
    let kinds: Vec<_> =
        told.iter().map(|refusal| (refusal.kind, refusal.packets, refusal.errno)).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    for kind in [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp] {
        assert!(kinds.contains(&(kind, 40, Some(INVALID))), "{kinds:?}");
    }
    assert_eq!(writer.switches().refusals().len(), 3);
    assert!(!writer.switches().on().has_any_kind());
    assert_eq!((writer.counters().refused, writer.counters().packets), (3, 480));
}

#[test]
fn one_kind_that_is_refused_leaves_the_others_on_for_all_writers() {
    let memory = Memory::judged(|_, written| (written[1] == 5).then(|| errno(INVALID)));
    let switches = Switches::new(Offloads::ALL);
    let mut first = Writer::new(&memory, Some(Framing::TUN), switches.clone());
    let mut second = Writer::new(&memory, Some(Framing::TUN), switches.clone());
    let packets = in_turn();
    write(&mut first, &packets).expect("all else is taken");
    assert_eq!((first.counters().refused, first.counters().super_packets), (1, 2));
    // The second UDP flow of this call was not tried.
    assert_eq!(first.counters().separated, 2);
    assert_eq!(switches.on(), Offloads::TCP);
    write(&mut second, &packets).expect("all else is taken");
    assert_eq!(
        (second.counters().refused, second.counters().separated, second.counters().super_packets),
        (0, 0, 2)
    );
    // A kind that is off is not merged.
    assert_eq!(second.aggregation().reason(Reason::UdpOff), 80);
    memory.take_all();
    switches.set(GsoKind::Udp, true);
    write(&mut second, &packets).expect("all is taken");
    assert_eq!(second.counters().super_packets, 6);
}

#[test]
fn a_device_that_refuses_single_packets_too_is_not_taken_for_one_without_offloads() {
    let memory = Memory::judged(|_, _| Some(errno(INVALID)));
    let packets = run(Frame::tcp4(1, 1348));
    let mut writer = writer(&memory);
    let error = write(&mut writer, &packets).expect_err("nothing is taken");
    assert_eq!(
        (error.raw_os_error(), writer.counters().rejected, writer.len()),
        (Some(INVALID), 40, 0)
    );
    writer.flush().expect("it was told once");
    assert!(writer.switches().refusals().is_empty());
    assert_eq!(writer.switches().on(), Offloads::ALL);
}

#[test]
fn a_packet_that_is_none_is_dropped_and_told_and_the_rest_is_written() {
    // `tun_get_user` refuses packets that are not IP.
    let memory =
        Memory::judged(|_, written| (!matches!(written[10] >> 4, 4 | 6)).then(|| errno(INVALID)));
    let mut packets = run(Frame::tcp4(1, 1348));
    let garbage = vec![0x75; 60];
    packets.insert(20, garbage.clone());
    let mut writer = writer(&memory);
    let error = write(&mut writer, &packets).expect_err("one is no packet");
    assert_eq!((error.raw_os_error(), writer.counters().rejected), (Some(INVALID), 1));
    packets.retain(|packet| *packet != garbage);
    assert_eq!(memory.packets(), packets);
    assert!(writer.switches().refusals().is_empty() && writer.is_empty());
    writer.flush().expect("it was told once");
}

#[test]
fn a_full_device_loses_and_repeats_nothing_wherever_it_is_full() {
    for refuses in [false, true] {
        let at_once = Memory::default();
        if refuses {
            at_once.judge(refuse_super_packets);
        }
        write(&mut writer(&at_once), &in_turn()).expect("the device takes all");
        let (expected, tries) = (at_once.packets(), at_once.state().written.len());
        for full_at in 0..tries {
            let memory = Memory::judged(move |number, written| {
                if number == full_at {
                    return Some(io::ErrorKind::WouldBlock.into());
                }
                (refuses && is_super_packet(written)).then(|| errno(INVALID))
            });
            let mut writer = writer(&memory);
            in_turn().into_iter().for_each(|packet| writer.push(packet));
            let error = writer.try_flush().expect_err("the device is full");
            assert_eq!((error.kind(), writer.counters().full), (io::ErrorKind::WouldBlock, 1));
            // Packets that are pushed meanwhile are written later.
            let late = Frame::tcp4(1, 5).at_ip().to_bytes();
            writer.push(late.clone());
            writer.flush().expect("the device takes the rest");
            let mut packets = memory.packets();
            assert_eq!(packets.pop(), Some(late), "full at {full_at}");
            assert!(packets == expected, "full at {full_at}, refuses: {refuses}");
            assert!(writer.is_empty());
        }
    }
}

#[test]
fn flush_waits_for_a_full_device() {
    let memory =
        Memory::judged(|number, _| (number % 2 == 0).then(|| io::ErrorKind::WouldBlock.into()));
    let packets = in_turn();
    write(&mut writer(&memory), &packets).expect("the device takes all in the end");
    assert_eq!(by_flow(&memory.packets()), by_flow(&packets));
    let state = memory.state();
    assert_eq!(state.waits, state.written.len());
}

#[test]
fn an_interface_that_is_down_keeps_the_packets_and_the_offloads() {
    let memory = Memory::judged(|_, _| Some(errno(DOWN)));
    let packets = in_turn();
    let mut writer = writer(&memory);
    for _ in 0..3 {
        let error = writer
            .try_flush()
            .err()
            .or_else(|| write(&mut writer, &packets).err())
            .expect("it is down");
        assert_eq!(error.raw_os_error(), Some(DOWN));
    }
    assert_eq!(writer.len(), packets.len());
    assert_eq!((writer.switches().on(), writer.counters().rejected), (Offloads::ALL, 0));
    memory.take_all();
    writer.flush().expect("it is up");
    assert_eq!(by_flow(&memory.packets()), by_flow(&packets));
}

#[test]
fn what_is_cleared_is_not_written() {
    let memory = Memory::judged(|number, _| (number == 1).then(|| errno(DOWN)));
    let mut writer = writer(&memory);
    write(&mut writer, &in_turn()).expect_err("it is down");
    writer.push(vec![0; 20]);
    assert_eq!((writer.clear(), writer.len()), (161, 0));
    let packets = run(Frame::udp4(1000));
    write(&mut writer, &packets).expect("it is up");
    assert_eq!(memory.state().written.len(), 2);
    assert_eq!(memory.packets()[40..], packets);
}

#[test]
fn a_switch_holds_from_the_next_flush_on() {
    let memory = Memory::default();
    let mut writer = writer(&memory);
    let packets = in_turn();
    let switches = writer.switches().clone();
    for (kind, left) in [(GsoKind::Tcp4, 3), (GsoKind::Tcp6, 2), (GsoKind::Udp, 0)] {
        switches.set(kind, false);
        let before = writer.counters().super_packets;
        write(&mut writer, &packets).expect("the device takes all");
        assert_eq!(writer.counters().super_packets - before, left, "without {kind:?}");
    }
    let counted = writer.aggregation().packets_in;
    switches.set_all(false);
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(writer.aggregation().packets_in, counted, "with all kinds off nothing is looked at");
    assert_eq!(writer.counters().refused, 0);
    for round in memory.packets().chunks(packets.len()) {
        assert_eq!(by_flow(round), by_flow(&packets));
    }
    switches.set_all(true);
    let before = writer.counters().super_packets;
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(writer.counters().super_packets - before, 4);
}

#[test]
fn packets_to_a_forbidden_destination_leave_apart() {
    let memory = Memory::default();
    let mut writer = writer(&memory);
    let packets = in_turn();
    let prefix = |packet: &[u8]| -> IpNet {
        let [a, b, c, ..] = packet[16..] else { unreachable!("an IPv4 header") };
        format!("{a}.{b}.{c}.0/24").parse().expect("a prefix")
    };
    let forbidden = prefix(&packets[0]);
    writer.switches().forbid(forbidden);
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!((writer.counters().super_packets, writer.counters().separated), (2, 2), "IPv6 only");
    assert_eq!(by_flow(&memory.packets()), by_flow(&packets));
    assert!(writer.switches().allow(forbidden));
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(writer.counters().super_packets, 6);
}

#[test]
fn a_damaged_packet_stays_as_it_is_unless_input_is_trusted() {
    let mut packets = run(Frame::tcp4(1, 1348));
    packets[10][1300] ^= 1;
    let memory = Memory::default();
    let mut writer = writer(&memory);
    assert!(!writer.switches().trusted_input());
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(memory.state().written.len(), 3);
    assert_eq!(memory.packets(), packets, "the wrong one is as it was");
    assert_eq!(writer.aggregation().reason(Reason::BadChecksum), 1);
    memory.state().written.clear();
    writer.switches().set_trusted_input(true);
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(memory.state().written.len(), 1, "the kernel would make the wrong one right");
}

#[test]
fn without_a_header_packets_leave_by_themselves() {
    let memory = Memory::default();
    let mut writer = Writer::new(&memory, None, Switches::new(Offloads::NONE));
    let packets = in_turn();
    writer.switches().set_all(true);
    write(&mut writer, &packets).expect("the device takes all");
    assert_eq!(memory.state().written, packets);
    assert_eq!(memory.state().most_slices, 1);
}

#[test]
fn whatever_fails_and_whenever_nothing_is_lost_doubled_or_overtaken() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut verdicts = Random::new(seed ^ 0x5eed);
        let broken = verdicts.below(3) == 0;
        let memory = Memory::judged(move |_, written| match verdicts.below(8) {
            0 => Some(io::ErrorKind::WouldBlock.into()),
            1 => Some(errno(DOWN)),
            _ => (broken && is_super_packet(written)).then(|| errno(INVALID)),
        });
        let mut writer = writer(&memory);
        let (mut pushed, packets) = (Vec::new(), in_turn());
        let mut rest = packets.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(random.between(1, 60).min(rest.len()));
            now.iter().for_each(|packet| writer.push(packet.clone()));
            pushed.extend_from_slice(now);
            rest = later;
            match random.below(4) {
                0 => drop(writer.try_flush()),
                1 => writer
                    .switches()
                    .set(random.pick(&[GsoKind::Tcp4, GsoKind::Udp]), random.chance(0.5)),
                _ => drop(writer.flush()),
            }
        }
        while writer.flush().is_err() {}
        assert!(by_flow(&memory.packets()) == by_flow(&packets), "seed {seed}");
        assert_eq!(writer.counters().packets, 160, "seed {seed}");
        assert_eq!(
            writer.counters().bytes,
            packets.iter().map(|packet| packet.len() as u64).sum::<u64>()
        );
    }
}

#[test]
fn a_queued_writer_merges_what_waits_and_holds_no_lone_packet() {
    let memory = Arc::new(Memory::default());
    let (sender, mut queued) = shared_writer(&memory).queued(1024);
    let packets = run(Frame::tcp4(1, 1348));
    packets.iter().for_each(|packet| sender.send(packet.clone()).expect("there is room"));
    let thread = thread::spawn(move || queued.run().map(|()| queued));
    let waited = |count| {
        let start = std::time::Instant::now();
        while memory.packets().len() < count {
            assert!(start.elapsed().as_secs() < 10, "{count} packets are not written");
            thread::yield_now();
        }
    };
    waited(40);
    assert_eq!(memory.state().written.len(), 1, "they waited together");
    for lone in 1..=5 {
        sender.send(packets[0].clone()).expect("it runs");
        waited(40 + lone);
    }
    drop(sender);
    let queued = thread.join().expect("no panic").expect("no error");
    assert_eq!(queued.counters().packets, 45);
}

/// Waits longer than the minimum time between two direct writes of senders.
fn pause() {
    thread::sleep(Duration::from_micros(100));
}

#[test]
fn a_packet_that_comes_alone_is_written_by_its_sender() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let writers = Arc::clone(&threads);
    let memory = Arc::new(Memory::judged(move |_, _| {
        writers.lock().expect("not poisoned").push(thread::current().id());
        None
    }));
    let (sender, mut queued) = shared_writer(&memory).queued(1024);
    let thread = thread::spawn(move || queued.run().map(|()| queued));
    let packet = run(Frame::tcp4(1, 700)).remove(0);
    let start = Instant::now();
    let own = thread::current().id();
    let mut sent = 0;
    while threads.lock().expect("not poisoned").last() != Some(&own) {
        assert!(start.elapsed().as_secs() < 10, "all go through the queue");
        sender.send(packet.clone()).expect("it runs");
        sent += 1;
        pause();
    }
    drop(sender);
    let queued = thread.join().expect("no panic").expect("no error");
    let counters = queued.counters();
    assert_ne!(
        threads.lock().expect("not poisoned")[0],
        own,
        "nothing says yet that packets come alone"
    );
    assert!(counters.direct >= 1 && counters.direct < sent);
    assert_eq!(
        (counters.packets, counters.writes, counters.bytes),
        (sent, sent, sent * packet.len() as u64)
    );
    assert_eq!(queued.writer().counters().packets, sent - counters.direct);
    assert!(memory.packets().iter().all(|written| *written == packet));
}

/// Senders that pause at random, with a device that is full at random and refuses super-packets.
#[test]
fn senders_to_a_queue_keep_their_order_and_lose_nothing() {
    let (mut direct, mut merged) = (0, 0);
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let memory = Arc::new(Memory::judged(move |number, written| {
            if random.chance(0.1) {
                return Some(io::ErrorKind::WouldBlock.into());
            }
            (number > 100 && is_super_packet(written)).then(|| errno(INVALID))
        }));
        let (sender, mut queued) = shared_writer(&memory).queued(16);
        let writer = thread::spawn(move || queued.run().map(|()| queued));
        let flows = [run(Frame::tcp4(1, 1348)), run(Frame::tcp6(1, 1328)), run(Frame::udp4(1200))];
        let senders = flows.clone().into_iter().enumerate().map(|(number, packets)| {
            let (sender, mut random) = (sender.clone(), Random::new(seed * 3 + number as u64));
            thread::spawn(move || {
                for packet in packets {
                    if random.chance(0.5) {
                        pause();
                    }
                    sender.send(packet).expect("the writer runs");
                }
            })
        });
        senders.collect::<Vec<_>>().into_iter().for_each(|sender| sender.join().expect("no panic"));
        drop(sender);
        let queued = writer.join().expect("no panic").expect("single packets are taken");
        assert_eq!(by_flow(&memory.packets()), by_flow(&flows.concat()), "seed {seed}");
        (direct, merged) =
            (direct + queued.counters().direct, merged + queued.counters().super_packets);
    }
    assert!(direct > 0 && merged > 0, "{direct} and {merged}");
}

#[test]
fn what_a_sender_cannot_write_is_judged_by_the_writer() {
    let memory = Arc::new(Memory::default());
    let (sender, mut queued) = shared_writer(&memory).queued(1024);
    let packet = run(Frame::udp4(700)).remove(0);
    let thread = thread::spawn(move || {
        let mut told = Vec::new();
        queued.run_lossy(|error| told.push(error.raw_os_error()));
        (told, queued)
    });
    // The first packet goes through the queue alone, so that the next is written directly.
    sender.send(packet.clone()).expect("it runs");
    while memory.state().written.is_empty() {
        pause();
    }
    pause();
    memory.judge(|_, _| Some(errno(INVALID)));
    sender.send(packet).expect("it runs");
    drop(sender);
    let (told, queued) = thread.join().expect("no panic");
    assert_eq!(told, [Some(INVALID)]);
    assert_eq!((queued.counters().rejected, queued.counters().packets), (1, 1));
    let (sender, queued) = shared_writer(&memory).queued(1);
    drop(queued);
    assert_eq!(sender.send(vec![1]).expect_err("the writer is gone").0, [1]);
}

#[test]
fn a_queued_writer_puts_in_order_what_waits_together() {
    let memory = Arc::new(Memory::default());
    let (sender, mut queued) = shared_writer(&memory).queued_in_order(1024);
    let packets = run(Frame::tcp4(1, 1348));
    for number in [1, 0, 3, 2, 5, 4] {
        sender
            .send((OrderKey::new(1, number), packets[number as usize].clone()))
            .expect("there is room");
    }
    drop(sender);
    queued.run().expect("the device takes all");
    assert_eq!(memory.state().written.len(), 1);
    assert_eq!(memory.packets(), packets[..6]);
}

#[test]
fn a_lossy_flush_leaves_nothing_for_the_next() {
    let memory = Memory::judged(|number, _| (number == 0).then(|| errno(DOWN)));
    let (mut writer, packets) = (writer(&memory), run(Frame::tcp4(1, 1348)));
    packets.iter().for_each(|packet| writer.push(packet.clone()));
    assert_eq!(writer.flush_lossy().expect_err("it is down").raw_os_error(), Some(DOWN));
    assert_eq!((writer.len(), memory.packets().len()), (0, 0));
    packets.iter().for_each(|packet| writer.push(packet.clone()));
    writer.flush_lossy().expect("it is up");
    assert_eq!(memory.packets(), packets);
}

#[test]
fn a_lossy_queued_writer_drops_what_the_device_does_not_take_and_tells() {
    let memory = Arc::new(Memory::judged(|number, _| (number == 0).then(|| errno(DOWN))));
    let (sender, mut queued) = shared_writer(&memory).queued(1024);
    let packets = [run(Frame::udp6(1000)), run(Frame::tcp4(1, 1348))].concat();
    // The packets of a failed flush are dropped; those of the next are written.
    let (dropped, written) = (packets.iter().cycle().take(256), packets.iter().take(40));
    dropped.chain(written).for_each(|packet| sender.send(packet.clone()).expect("there is room"));
    drop(sender);
    let mut told = Vec::new();
    queued.run_lossy(|error| told.push(error.raw_os_error()));
    assert_eq!(told, [Some(DOWN)]);
    assert_eq!(memory.packets(), packets[..40]);
    assert!(queued.writer().is_empty());
}

#[test]
fn a_queued_writer_goes_on_after_an_error() {
    let memory = Arc::new(Memory::judged(|number, _| (number == 0).then(|| errno(DOWN))));
    let (sender, mut queued) = shared_writer(&memory).queued(1024);
    let packets = run(Frame::udp6(1000));
    packets.iter().for_each(|packet| sender.send(packet.clone()).expect("there is room"));
    drop(sender);
    assert_eq!(queued.run().expect_err("it is down").raw_os_error(), Some(DOWN));
    queued.run().expect("it is up");
    assert_eq!(memory.packets(), packets);
    assert!(queued.writer_mut().is_empty());
}
