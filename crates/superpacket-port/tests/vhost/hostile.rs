//! Guests that break the rules of their rings.

use std::time::Duration;

use superpacket::virtio::{ByteOrder, Format, Header, flags, gso_type};
use superpacket_front_end::{Descriptor, Guest, GuestSettings, descriptor_flag};
use superpacket_traffic::frame::Frame;

use crate::bench::Bench;
use crate::frames::{bytes, frame};

/// Descriptors of `length` bytes in the sending queue's buffers.
fn descriptor(guest: &Guest, length: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address: guest.queues[1].buffers, length, flags, next }
}

/// Lets a guest do something that the port must notice when it polls, then checks that the guest is
/// gone, that the port counted it, and that it serves the next.
fn is_reset(attack: impl FnOnce(&mut Guest)) {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    attack(&mut guest);
    guest.kick(1);
    let mut packets = Vec::new();
    assert!(bench.is_readable(0, Duration::from_secs(5)));
    bench.poll(0, &mut packets);
    assert!(packets.is_empty());
    assert!(guest.front_end.is_closed(), "the connection is ended");
    assert_eq!(bench.port.counters().rx_errors, 1);
    bench.serves_the_next();
}

/// Lets a guest offer receive buffers that the port must notice when it sends.
fn is_reset_when_sent_to(attack: impl FnOnce(&mut Guest)) {
    let mut bench = Bench::new("");
    let mut guest = Guest::prepare(
        superpacket_front_end::FrontEnd::connect(&bench.path).expect("it listens"),
        GuestSettings::default(),
    )
    .expect("agreed");
    guest.pass_memory().expect("accepted");
    (0..2).for_each(|index| guest.start_queue(index).expect("accepted"));
    attack(&mut guest);
    assert!(!bench.send_plain(&frame(1000)));
    assert!(guest.front_end.is_closed(), "the connection is ended");
    assert_eq!(bench.port.counters().rx_errors, 1);
    bench.serves_the_next();
}

/// Lets a guest send a malformed frame, which must be left out, and a right one after it.
fn is_left_out(attack: impl FnOnce(&mut Guest)) {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    attack(&mut guest);
    let header = vec![0; guest.header_length()];
    assert!(guest.send(0, &header, &frame(77)));
    guest.kick(1);
    let packets = bench.receive(0, 1);
    assert_eq!(packets.iter().map(bytes).collect::<Vec<_>>(), [frame(77)]);
    assert_eq!(bench.port.counters().rx_errors, 1);
    // The buffer of the malformed frame came back too.
    assert!(guest.queues[1].ring.take_used(&guest.memory).is_some());
    assert!(guest.queues[1].ring.take_used(&guest.memory).is_some());
}

fn offer(guest: &mut Guest, descriptors: &[(u16, Descriptor)]) {
    let Guest { queues, memory, .. } = guest;
    for (index, descriptor) in descriptors {
        queues[1].ring.set(memory, *index, *descriptor);
    }
    queues[1].ring.offer_head(memory, descriptors[0].0);
}

/// CVE-2018-1059: a buffer that ends beyond its region, and one that continues in a region which
/// does not follow it in this process.
#[test]
fn attack_1_a_buffer_over_the_end_of_the_memory() {
    for beyond in [1_u64, 100, 1 << 20, 1 << 31] {
        is_reset(|guest| {
            let end = guest.memory.regions[0].length;
            let over = Descriptor {
                address: end - 100,
                length: 100 + beyond as u32,
                ..Default::default()
            };
            offer(guest, &[(0, over)]);
        });
        is_reset_when_sent_to(|guest| {
            let end = guest.memory.regions[0].length;
            let Guest { queues, memory, .. } = guest;
            let part = (end - 100, 100 + beyond as u32);
            queues[0].ring.offer(memory, &[part], true);
        });
    }
}

/// CVE-2020-10725.
#[test]
fn attack_5_an_address_that_does_not_translate() {
    for address in [u64::MAX, u64::MAX - 50, 1 << 40, superpacket_front_end::USER] {
        is_reset(|guest| {
            offer(guest, &[(0, Descriptor { address, length: 100, ..Default::default() })]);
        });
        is_reset_when_sent_to(|guest| {
            let Guest { queues, memory, .. } = guest;
            queues[0].ring.offer(memory, &[(address, 2048)], true);
        });
    }
}

/// CVE-2022-2132: DPDK took for granted that the header lies in one or two descriptors.
#[test]
fn attack_7_a_header_over_many_descriptors_is_read_all_the_same() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings { send_parts: vec![1; 30], ..Default::default() });
    let frame = Frame::tcp4(1, 100);
    let mut header = [0; 24];
    let said = Header {
        flags: flags::NEEDS_CSUM,
        csum_start: frame.offsets().transport as u16,
        csum_offset: 16,
        ..Header::default()
    };
    said.write(&mut header, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
    assert!(guest.send(0, &header, &frame.to_bytes()));
    let packets = bench.receive(0, 1);
    assert_eq!(bytes(&packets[0]), frame.to_bytes());
    let start = frame.offsets().transport as u16;
    assert_eq!(packets[0].checksum, superpacket::packet::RxChecksum::Partial { start, offset: 16 });
}

#[test]
fn attack_7_a_chain_no_longer_than_the_header() {
    for length in [0, 1, 11, 12, 23, 24] {
        is_left_out(|guest| {
            let (at, Guest { queues, memory, .. }) = (guest.queues[1].buffers, guest);
            queues[1].ring.offer(memory, &[(at, length)], false).expect("there is room");
        });
    }
    // And one that is longer than any frame.
    is_left_out(|guest| {
        let (at, Guest { queues, memory, .. }) = (guest.queues[1].buffers, guest);
        queues[1].ring.offer(memory, &[(at, 65_000), (at, 65_000)], false).expect("room");
    });
}

/// CVE-2024-11614.
#[test]
fn attack_8_a_checksum_behind_the_end_of_the_frame() {
    for (start, offset) in [(1000, 16), (0xffff, 0xffff), (99, 0), (98, 1), (0, 99)] {
        is_left_out(|guest| {
            let mut header = [0; 24];
            let said = Header {
                flags: flags::NEEDS_CSUM,
                csum_start: start,
                csum_offset: offset,
                ..Header::default()
            };
            said.write(&mut header, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
            assert!(guest.send(0, &header, &frame(100)));
        });
    }
}

/// The second half of CVE-2024-11614: a header that changes while it is read. Whatever is read was
/// checked: the frame has one of the two headers, or is left out.
#[test]
fn attack_8_a_header_that_changes_between_two_reads() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    let frame = Frame::tcp4(1, 100).to_bytes();
    let header = |start: u16| {
        let mut header = [0; 24];
        let said = Header {
            flags: flags::NEEDS_CSUM,
            gso_type: gso_type::NONE,
            csum_start: start,
            csum_offset: 16,
            ..Header::default()
        };
        said.write(&mut header, Format::Tunnel, ByteOrder::Little).expect("24 bytes");
        header
    };
    let (good, bad) = (header(34), header(0xfff0));
    let stop = AtomicBool::new(false);
    let at = guest.queues[1].buffers;
    let file = guest.memory.regions[0].file.try_clone().expect("a copy");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // All buffers change, over and over.
                for buffer in 0..32 {
                    let place = at + buffer * 68 * 1024;
                    for header in [&bad, &good] {
                        rustix::io::pwrite(&file, header, place).expect("it is memory");
                    }
                }
            }
        });
        for _ in 0..2000 {
            assert!(guest.send(0, &good, &frame));
            let mut packets = Vec::new();
            bench.poll(0, &mut packets);
            for packet in &packets {
                let superpacket::packet::RxChecksum::Partial { start, offset } = packet.checksum
                else {
                    continue;
                };
                assert!(usize::from(start) + usize::from(offset) + 2 <= packet.length());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn attack_9_loops_and_numbers_out_of_range() {
    is_reset(|guest| {
        let link = descriptor(guest, 10, descriptor_flag::NEXT, 0);
        offer(guest, &[(0, link)]);
    });
    is_reset(|guest| {
        let [to_one, to_zero] =
            [1, 0].map(|next| descriptor(guest, 10, descriptor_flag::NEXT, next));
        offer(guest, &[(0, to_one), (1, to_zero)]);
    });
    for next in [256, 0x8000, 0xffff] {
        is_reset(|guest| {
            let link = descriptor(guest, 10, descriptor_flag::NEXT, next);
            offer(guest, &[(0, link)]);
        });
        is_reset(|guest| {
            let Guest { queues, memory, .. } = guest;
            queues[1].ring.offer_head(memory, next);
        });
        is_reset_when_sent_to(|guest| {
            let Guest { queues, memory, .. } = guest;
            queues[0].ring.offer_head(memory, next);
        });
    }
}

#[test]
fn buffers_of_the_wrong_direction_and_indirect_ones() {
    for flags in [descriptor_flag::WRITE, descriptor_flag::INDIRECT] {
        is_reset(|guest| {
            let wrong = descriptor(guest, 160, flags, 0);
            offer(guest, &[(0, wrong)]);
        });
    }
    is_reset_when_sent_to(|guest| {
        let Guest { queues, memory, .. } = guest;
        let at = queues[0].buffers;
        queues[0].ring.offer(memory, &[(at, 2048)], false);
    });
}

/// rust-vmm's virtio-queue, issue 196.
#[test]
fn attack_11_an_index_further_ahead_than_the_ring_is_long() {
    for ahead in [257, 0x8000, 0xffff] {
        is_reset(|guest| guest.queues[1].ring.set_available_index(&guest.memory, ahead));
        is_reset_when_sent_to(|guest| {
            guest.queues[0].ring.set_available_index(&guest.memory, ahead);
        });
    }
}

/// CVE-2020-16843: the receive queue was full, and stayed so.
#[test]
fn attack_13_a_full_receive_queue_resumes() {
    let mut bench = Bench::new("");
    let mut guest = bench.guest(GuestSettings::default());
    for _ in 0..5 {
        let sent = (0..1000).take_while(|_| bench.send_plain(&frame(100))).count();
        assert_eq!(sent, 256);
        // A frame that needs more buffers than there are takes none away.
        assert!(guest.receive(0).is_some());
        assert!(!bench.send_plain(&frame(60_000)));
        assert!(bench.send_plain(&frame(100)));
        assert!(!bench.send_plain(&frame(100)));
        let received = std::iter::from_fn(|| guest.receive(0)).count();
        assert_eq!(received, 256, "and all come");
    }
    assert!(bench.port.counters().tx_full >= 5);
    let big = frame(60_000);
    assert!(bench.send_plain(&big));
    assert_eq!(guest.receive(0).expect("it was sent").bytes, big);
}

/// A guest whose buffers are too short for a frame loses that frame only.
#[test]
fn buffers_too_short_for_a_frame_are_not_used_up() {
    let mut bench = Bench::new("");
    let features = !(1 << superpacket_front_end::feature::MRG_RXBUF);
    let settings = GuestSettings { features, receive_buffer: 200, ..GuestSettings::default() };
    let mut guest = bench.guest(settings);
    for _ in 0..300 {
        assert!(!bench.send_plain(&frame(177)));
    }
    assert!(bench.send_plain(&frame(176)));
    assert_eq!(guest.receive(0).expect("it fits").bytes, frame(176));
}

/// A ring in which each frame costs as much as possible: the port still answers others.
#[test]
fn chains_of_empty_descriptors_are_bounded() {
    is_reset_when_sent_to(|guest| {
        let Guest { queues, memory, .. } = guest;
        let ring = &mut queues[0].ring;
        for index in 0..255 {
            let flags =
                descriptor_flag::WRITE | if index < 254 { descriptor_flag::NEXT } else { 0 };
            ring.set(memory, index, Descriptor { flags, next: index + 1, ..Default::default() });
        }
        (0..200).for_each(|_| ring.offer_head(memory, 0));
    });
}

/// Other guests of the same process go on while one is reset.
#[test]
fn a_cheating_guest_costs_others_nothing() {
    let mut other = Bench::new("");
    let mut good = other.guest(GuestSettings::default());
    let header = vec![0; good.header_length()];
    for _ in 0..5 {
        is_reset(|guest| {
            let link = descriptor(guest, 10, descriptor_flag::NEXT, 0);
            offer(guest, &[(0, link)]);
        });
        assert!(good.send(0, &header, &frame(60)));
        assert_eq!(other.receive(0, 1).len(), 1);
    }
    assert_eq!(other.port.counters().rx_errors, 0);
}
