//! Tests of captures that are replayed and recorded as ports.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_captures::file::{ByteOrder, Format};
use superpacket_captures::file::{
    FrameOptions, Interface, LinkType, OutputFormat, PcapVariant, Reader, Record, Sink, Source,
    TimeResolution, Timestamp, Writer,
};
use superpacket_port::features::Feature;
use superpacket_port::{
    Buffer, LinkState, Outgoing, POLL_LIMIT, Port, PortError, Receive, StopReason, Transmit,
    TxBatch, open,
};

fn port(text: &str) -> Box<dyn Port> {
    try_port(text).unwrap_or_else(|error| panic!("{error}"))
}

fn try_port(text: &str) -> Result<Box<dyn Port>, PortError> {
    open(&text.parse().expect("well formed"))
}

/// A frame of a capture to be written: its time in nanoseconds, its bytes, its length on the wire.
type Written = (u64, Vec<u8>, usize);

/// Writes a capture whose frames have these link types in turn.
fn write(path: &Path, link_types: &[LinkType], frames: &[Written]) {
    let like = Format::Pcap { byte_order: ByteOrder::Big, variant: PcapVariant::Nanoseconds };
    let mut writer = Writer::create(path, OutputFormat::for_path(path, like)).expect("created");
    let interfaces: Vec<_> = link_types
        .iter()
        .map(|link_type| Interface::new(*link_type, TimeResolution::NANOSECONDS))
        .collect();
    writer.declare(&interfaces).expect("declared");
    for (index, (time, bytes, length)) in frames.iter().enumerate() {
        let record = Record {
            interface: (index % link_types.len()) as u32,
            time: Some(Timestamp::from_nanoseconds(*time)),
            original_length: Some(*length as u32),
            options: FrameOptions::NONE,
        };
        writer.write(record, [&bytes[..]]).expect("written");
    }
    writer.finish().expect("finished");
}

/// Returns 300 frames of a TCP flow, 10 microseconds apart.
fn flow() -> Vec<Written> {
    let frames = superpacket_traffic::workload::w1(300);
    frames
        .into_iter()
        .enumerate()
        .map(|(index, frame)| {
            (1_700_000_000_000_000_000 + index as u64 * 10_000, frame.clone(), frame.len())
        })
        .collect()
}

fn read(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = Reader::open(path).expect("it is there, whole");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().expect("well formed") {
        assert!(!frame.is_truncated());
        frames.push((frame.time.expect("recorded").nanoseconds(), frame.data.to_vec()));
    }
    assert!(reader.truncated().is_none());
    frames
}

fn bytes(packets: &[RxPacket<Buffer>]) -> Vec<Vec<u8>> {
    packets
        .iter()
        .map(|packet| packet.buffers().flat_map(|buffer| buffer.bytes()).copied().collect())
        .collect()
}

/// Returns whether the receiver becomes ready within this time.
fn is_ready(receiver: &dyn Receive, within: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    poll(&mut [PollFd::from_borrowed_fd(receiver.readiness(), PollFlags::IN)], Some(&timeout))
        == Ok(1)
}

/// Receives packets until the receiver is not ready for 50 ms.
fn receive_all(receiver: &mut dyn Receive) -> Vec<RxPacket<Buffer>> {
    let mut packets = Vec::new();
    while is_ready(receiver, Duration::from_millis(50)) {
        receiver.poll(&mut packets, POLL_LIMIT).expect("the capture is well formed");
    }
    packets
}

fn send(transmitter: &mut dyn Transmit, frames: &[Vec<u8>], layer: Layer) {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    frames
        .iter()
        .for_each(|frame| batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, layer));
    let progress = transmitter.transmit(&outgoing, &batch, 0);
    assert_eq!(
        (progress.sent, progress.stopped.is_none()),
        (frames.len(), true),
        "{:?}",
        progress.stopped
    );
}

#[test]
fn what_is_replayed_and_recorded_is_the_same_bit_for_bit() {
    let directory = tempfile::tempdir().expect("a directory");
    let frames = flow();
    for (input, output) in
        [("in.pcap", "out.pcapng"), ("in.pcapng.gz", "out.pcap.zst"), ("in.pcap.zst", "out.pcap")]
    {
        let (input, output) = (directory.path().join(input), directory.path().join(output));
        write(&input, &[LinkType::ETHERNET], &frames);
        let start = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos() as u64;
        let mut port =
            port(&format!("pcap:{}?speed=max&record={}", input.display(), output.display()));
        assert_eq!((port.layer(), port.state().link), (Layer::Ethernet, LinkState::Up));
        let mut receiver = port.receivers().remove(0);
        let mut transmitter = port.transmitter().expect("an end");
        assert!(port.receivers().is_empty(), "they are handed out once");
        let mut packets = Vec::new();
        assert!(is_ready(&*receiver, Duration::ZERO));
        assert_eq!(receiver.poll(&mut packets, 100).expect("well formed"), 100);
        assert!(is_ready(&*receiver, Duration::ZERO));
        assert_eq!(receiver.poll(&mut packets, POLL_LIMIT).expect("well formed"), 200);
        assert!(!is_ready(&*receiver, Duration::from_millis(20)), "nothing more comes");
        assert_eq!(receiver.poll(&mut packets, POLL_LIMIT).expect("the end is no error"), 0);
        let expected: Vec<_> = frames.iter().map(|frame| frame.1.clone()).collect();
        assert_eq!(bytes(&packets), expected);
        send(&mut *transmitter, &bytes(&packets), Layer::Ethernet);
        assert!(!output.exists(), "it is not whole yet");
        drop((transmitter, receiver));
        drop(port);
        let recorded = read(&output);
        assert_eq!(recorded.iter().map(|frame| frame.1.clone()).collect::<Vec<_>>(), expected);
        assert!(
            recorded.iter().all(|frame| (start..start + 60_000_000_000).contains(&frame.0)),
            "the time is that of sending"
        );
    }
}

/// Replays frames at these times in milliseconds, and returns their arrival times relative to the
/// first.
fn arrivals(options: &str, times: &[u64]) -> Vec<Duration> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    let frames: Vec<Written> =
        times.iter().map(|time| (1_000_000_000_000 + time * 1_000_000, vec![0; 60], 60)).collect();
    write(&path, &[LinkType::ETHERNET], &frames);
    let mut receiver = port(&format!("pcap:{}?{options}", path.display())).receivers().remove(0);
    let (mut arrivals, mut packets, mut start) = (Vec::new(), Vec::new(), None);
    while is_ready(&*receiver, Duration::from_secs(1)) {
        let count = receiver.poll(&mut packets, POLL_LIMIT).expect("well formed");
        let start = *start.get_or_insert_with(Instant::now);
        arrivals.extend((0..count).map(|_| start.elapsed()));
    }
    arrivals
}

fn assert_times(arrivals: &[Duration], expected: &[u64]) {
    assert_eq!(arrivals.len(), expected.len());
    let mut late: Vec<_> = arrivals
        .iter()
        .zip(expected)
        .map(|(arrival, due)| arrival.as_secs_f64() * 1000.0 - *due as f64)
        .collect();
    // The first poll starts the clock a moment before the test does.
    assert!(late.iter().all(|late| (-5.0..500.0).contains(late)), "milliseconds late: {late:?}");
    late.sort_by(f64::total_cmp);
    assert!(late[late.len() / 2] < 15.0, "milliseconds late: {late:?}");
}

#[test]
fn timed_replay_keeps_the_intervals() {
    // One is captured out of order: it follows the one before at once.
    assert_times(&arrivals("speed=timed", &[0, 30, 40, 20, 140, 200]), &[0, 30, 40, 40, 140, 200]);
    assert_times(&arrivals("loop=2", &[0, 50, 120]), &[0, 50, 120, 120, 170, 240]);
}

#[test]
fn a_multiplier_scales_them() {
    assert_times(&arrivals("speed=4", &[0, 200, 400, 800]), &[0, 50, 100, 200]);
    assert_times(&arrivals("speed=0.5", &[0, 20, 100]), &[0, 40, 200]);
}

#[test]
fn a_capture_is_replayed_as_often_as_asked() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    let frames = &flow()[..7];
    write(&path, &[LinkType::ETHERNET], frames);
    let once: Vec<_> = frames.iter().map(|frame| frame.1.clone()).collect();
    for (times, expected) in [("0", 0), ("1", 1), ("3", 3)] {
        let mut receiver =
            port(&format!("pcap:{}?speed=max&loop={times}", path.display())).receivers().remove(0);
        assert_eq!(bytes(&receive_all(&mut *receiver)), vec![once.clone(); expected].concat());
    }
    let mut endless =
        port(&format!("pcap:{}?speed=max&loop=forever", path.display())).receivers().remove(0);
    let mut packets = Vec::new();
    (0..20).for_each(|_| assert_eq!(endless.poll(&mut packets, 100).expect("well formed"), 100));
    assert!(is_ready(&*endless, Duration::ZERO));
    // Without a frame there is nothing to replay for ever.
    write(&path, &[LinkType::ETHERNET], &[]);
    let mut empty = port(&format!("pcap:{}?speed=max&loop=forever", path.display()));
    assert!(receive_all(&mut *empty.receivers().remove(0)).is_empty());
}

#[test]
fn frames_that_are_not_whole_or_of_another_layer_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcapng");
    let mut frames = flow()[..10].to_vec();
    frames[4].2 += 1;
    write(&path, &[LinkType::ETHERNET], &frames);
    let mut cut = port(&format!("pcap:{}?speed=max", path.display()));
    assert_eq!(receive_all(&mut *cut.receivers().remove(0)).len(), 9);
    assert_eq!(cut.counters().rx_errors, 1);
    // Every second one is an IP packet, and the first decides.
    let mixed: Vec<_> = flow()[..10]
        .iter()
        .enumerate()
        .map(|(index, frame)| if index % 2 == 0 { frame.clone() } else { ip(frame, &[]) })
        .collect();
    write(&path, &[LinkType::ETHERNET, LinkType::RAW], &mixed);
    let mut port = port(&format!("pcap:{}?speed=max", path.display()));
    assert_eq!(port.layer(), Layer::Ethernet);
    assert_eq!(receive_all(&mut *port.receivers().remove(0)).len(), 5);
    assert_eq!(port.counters().rx_errors, 5);
}

/// Returns the IP packet of a frame, with `header` in place of the Ethernet header.
fn ip(frame: &Written, header: &[u8]) -> Written {
    let bytes = [header, &frame.1[14..]].concat();
    (frame.0, bytes.clone(), bytes.len())
}

#[test]
fn ip_captures_carry_ip_packets() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, output) = (directory.path().join("in.pcap"), directory.path().join("out.pcap"));
    for (link_type, header) in [(LinkType::RAW, &[][..]), (LinkType::NULL, &[2, 0, 0, 0])] {
        let frames: Vec<_> = flow()[..10].iter().map(|frame| ip(frame, header)).collect();
        write(&path, &[link_type], &frames);
        let mut port =
            port(&format!("pcap:{}?speed=max&record={}", path.display(), output.display()));
        assert_eq!(port.layer(), Layer::Ip);
        let packets = receive_all(&mut *port.receivers().remove(0));
        assert!(packets.iter().all(|packet| packet.layer == Layer::Ip));
        let expected: Vec<_> = flow()[..10].iter().map(|frame| frame.1[14..].to_vec()).collect();
        assert_eq!(bytes(&packets), expected);
        send(&mut *port.transmitter().expect("an end"), &expected, Layer::Ip);
        drop(port);
        assert_eq!(
            Reader::open(&output).expect("recorded").interfaces()[0].link_type,
            LinkType::RAW
        );
        assert_eq!(read(&output).into_iter().map(|frame| frame.1).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_port_that_only_records_gets_nothing_and_takes_no_offload() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("out.pcap");
    let mut port = port(&format!("pcap:{}?mode=record", output.display()));
    assert!(port.receivers().is_empty());
    let features = port.capabilities().features;
    for lacking in
        [Feature::TxChecksumming, Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation]
    {
        assert!(!features.contains(lacking), "{lacking}");
    }
    assert!(features.contains(Feature::ScatterGather));
    let mut transmitter = port.transmitter().expect("an end");
    let frame = flow().remove(0).1;
    let gso = Some(Gso::new(GsoKind::Tcp4, SegmentSize::new(100).expect("above 0")));
    let partial = RxChecksum::Partial { start: 34, offset: 16 };
    for (checksum, gso, layer) in [
        (partial, None, Layer::Ethernet),
        (partial, gso, Layer::Ethernet),
        (RxChecksum::None, None, Layer::Ip),
    ] {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        batch.push_bytes(&mut outgoing, &frame, checksum, gso, layer);
        let progress = transmitter.transmit(&outgoing, &batch, 0);
        assert_eq!(progress.sent, 0);
        match layer {
            Layer::Ethernet => assert!(matches!(progress.stopped, Some(StopReason::Offload(_)))),
            Layer::Ip => assert!(matches!(progress.stopped, Some(StopReason::Refused(_)))),
        }
    }
    // Several ends write one file; it is whole when the last has gone.
    let mut other = port.transmitter().expect("another end");
    send(&mut *transmitter, std::slice::from_ref(&frame), Layer::Ethernet);
    drop((transmitter, port));
    send(&mut *other, &[frame[..60].to_vec()], Layer::Ethernet);
    assert!(!output.exists());
    drop(other);
    assert_eq!(
        read(&output).into_iter().map(|frame| frame.1).collect::<Vec<_>>(),
        [frame.clone(), frame[..60].to_vec()]
    );
}

#[test]
fn what_is_sent_to_a_port_that_only_replays_is_thrown_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    write(&path, &[LinkType::ETHERNET], &flow()[..1]);
    let before = std::fs::read(&path).expect("there");
    let mut port = port(&format!("pcap:{}", path.display()));
    send(&mut *port.transmitter().expect("an end"), &[vec![0; 60]], Layer::Ethernet);
    drop(port);
    assert_eq!(std::fs::read(&path).expect("there"), before);
}

#[test]
fn a_damaged_capture_is_replayed_up_to_the_damage() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    let frames = &flow()[..5];
    write(&path, &[LinkType::ETHERNET], frames);
    let whole = std::fs::read(&path).expect("there");
    // Cut in mid-record: the end comes sooner.
    std::fs::write(&path, &whole[..whole.len() - 10]).expect("written");
    let mut cut = port(&format!("pcap:{}?speed=max", path.display()));
    assert_eq!(receive_all(&mut *cut.receivers().remove(0)).len(), 4);
    assert_eq!(cut.counters().rx_errors, 1);
    // A length that cannot be: what came before is delivered, then the error, once.
    let mut damaged = whole.clone();
    let record = 24 + 3 * (16 + frames[0].1.len());
    damaged[record + 8..record + 12].fill(0x7f);
    std::fs::write(&path, &damaged).expect("written");
    let text = format!("pcap:{}?speed=max", path.display());
    let mut receiver = port(&text).receivers().remove(0);
    let mut packets = Vec::new();
    assert_eq!(receiver.poll(&mut packets, POLL_LIMIT).expect("these are whole"), 3);
    assert!(is_ready(&*receiver, Duration::ZERO), "there is something to tell");
    let error = receiver.poll(&mut packets, POLL_LIMIT).expect_err("the fourth is damaged");
    assert!(
        error.to_string().contains(&text)
            && error.to_string().contains("packet 4")
            && !error.is_transient(),
        "{error}"
    );
    assert_eq!(receiver.poll(&mut packets, POLL_LIMIT).expect("it was told once"), 0);
    assert!(!is_ready(&*receiver, Duration::ZERO));
}

#[test]
fn what_cannot_be_opened_is_explained() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    write(&path, &[LinkType::ETHERNET], &flow()[..1]);
    let (path, missing) = (path.display(), directory.path().join("missing").join("x.pcap"));
    let missing = missing.display();
    let unread = directory.path().join("unread");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &unread,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    for (text, says) in [
        (format!("pcap:{missing}"), "cannot be opened"),
        (format!("pcap:{missing}?mode=record"), "missing"),
        (format!("pcap:{path}?record={path}"), "over itself"),
        (format!("pcap:{path}?speed=fast"), "speed=fast"),
        (format!("pcap:{path}?record={}", unread.display()), "nobody reads the pipe"),
        (format!("pcap:{}?mode=record", unread.display()), "nobody reads the pipe"),
    ] {
        let error = try_port(&text).expect_err(&text).to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

/// Runs `check`, and fails if it does not end, as when a port waits for a pipe.
fn without_waiting(check: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let checking = std::thread::spawn(move || {
        check();
        done.send(()).expect("somebody waits");
    });
    match ended.recv_timeout(Duration::from_secs(30)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the port waits for its pipe"),
        _ => checking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Creates a named pipe. Returns its path, and the end to write to, which keeps it open.
fn pipe(directory: &Path) -> (String, std::fs::File) {
    let path = directory.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    // For reading too: whoever only writes waits for a reader.
    let writer = std::fs::File::options().read(true).write(true).open(&path).expect("it is there");
    (format!("pcap:{}", path.display()), writer)
}

/// Returns the bytes of a pcap file with these frames.
fn file_of(link_type: LinkType, frames: &[Written]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    write(&path, &[link_type], frames);
    std::fs::read(path).expect("it is there")
}

#[test]
fn what_comes_over_a_pipe_is_received_as_it_comes() {
    use std::io::Write;
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, mut writer) = pipe(directory.path());
        let frames = &flow()[..2];
        let whole = file_of(LinkType::ETHERNET, frames);
        // The header, the first record and half of the second one's header.
        let half = 24 + 16 + frames[0].1.len() + 8;
        writer.write_all(&whole[..half]).expect("written");
        let mut port = port(&format!("{text}?speed=max"));
        let mut receiver = port.receivers().remove(0);
        assert_eq!(bytes(&receive_all(&mut *receiver)), [frames[0].1.clone()]);
        let mut packets = Vec::new();
        assert_eq!(receiver.poll(&mut packets, POLL_LIMIT).expect("half a record is no error"), 0);
        assert!(
            !is_ready(&*receiver, Duration::from_millis(20)),
            "nobody is woken for half a record"
        );
        writer.write_all(&whole[half..]).expect("written");
        assert!(is_ready(&*receiver, Duration::from_secs(10)));
        assert_eq!(bytes(&receive_all(&mut *receiver)), [frames[1].1.clone()]);
        // Half a record, and then the end.
        writer.write_all(&[0; 8]).expect("written");
        drop(writer);
        assert!(is_ready(&*receiver, Duration::from_secs(10)));
        assert_eq!(receive_all(&mut *receiver).len(), 0);
        assert_eq!(port.counters().rx_errors, 1, "a record that was cut");
    });
}

#[test]
fn more_than_a_pipe_holds_is_received_whole() {
    use std::io::Write;
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, mut writer) = pipe(directory.path());
        let frames = flow();
        let whole = file_of(LinkType::ETHERNET, &frames);
        assert!(whole.len() > 65_536);
        let writing = std::thread::spawn(move || {
            writer.write_all(&whole).expect("is read");
            writer
        });
        let mut port = port(&text);
        let mut receiver = port.receivers().remove(0);
        let mut packets = Vec::new();
        while packets.len() < frames.len() {
            assert!(is_ready(&*receiver, Duration::from_secs(10)), "{} packets", packets.len());
            receiver.poll(&mut packets, 7).expect("the capture is well formed");
        }
        let expected: Vec<_> = frames.into_iter().map(|frame| frame.1).collect();
        assert_eq!(bytes(&packets), expected);
        drop(writing.join().expect("no panic"));
    });
}

#[test]
fn a_port_opens_and_closes_while_nothing_comes_over_its_pipe() {
    use std::io::Write;
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, mut writer) = pipe(directory.path());
        let started = Instant::now();
        let mut first = port(&text);
        let receiver = first.receivers().remove(0);
        assert_eq!(first.layer(), Layer::Ethernet, "for want of a header");
        drop((first, receiver));
        // It may come late all the same; the header says what it is.
        let frames = &flow()[..1];
        let packet = vec![(frames[0].0, frames[0].1[14..].to_vec(), frames[0].1.len() - 14)];
        let whole = file_of(LinkType::RAW, &packet);
        writer.write_all(&whole[..24]).expect("written");
        let mut second = port(&text);
        assert_eq!(second.layer(), Layer::Ip);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let mut receiver = second.receivers().remove(0);
        assert_eq!(receive_all(&mut *receiver).len(), 0);
        writer.write_all(&whole[24..]).expect("written");
        assert!(is_ready(&*receiver, Duration::from_secs(10)));
        assert_eq!(bytes(&receive_all(&mut *receiver)), [packet[0].1.clone()]);
    });
}

#[test]
fn what_is_no_capture_is_told_by_a_poll_if_it_comes_late() {
    use std::io::Write;
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, mut writer) = pipe(directory.path());
        let mut port = port(&text);
        let mut receiver = port.receivers().remove(0);
        writer.write_all(b"no capture at all").expect("written");
        let mut packets = Vec::new();
        let error = loop {
            assert!(is_ready(&*receiver, Duration::from_secs(10)));
            if let Err(error) = receiver.poll(&mut packets, POLL_LIMIT) {
                break error.to_string();
            }
        };
        assert!(error.contains("not a capture file"), "{error}");
    });
}

/// Sends all frames by the port, repeatedly while it is full, for at most `patience`. Returns the
/// number sent, and the reason for stopping.
fn send_patiently(
    transmitter: &mut dyn Transmit,
    frames: &[Vec<u8>],
    patience: Duration,
) -> (usize, Option<StopReason>) {
    let mut outgoing = Outgoing::new();
    let mut batch = TxBatch::new();
    frames.iter().for_each(|frame| {
        batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet)
    });
    let (started, mut from) = (Instant::now(), 0);
    while from < frames.len() {
        let progress = transmitter.transmit(&outgoing, &batch, from);
        from += progress.sent;
        match progress.stopped {
            Some(StopReason::Full) if started.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(1))
            }
            None => {}
            stopped => return (from, stopped),
        }
    }
    (from, None)
}

#[test]
fn what_a_reader_does_not_take_waits_within_bounds_and_holds_nobody_up() {
    use std::io::Read;
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, mut reader) = pipe(directory.path());
        let mut port = port(&format!("{text}?mode=record"));
        let mut transmitter = port.transmitter().expect("records");
        let frames: Vec<_> =
            (0..200u32).map(|number| number.to_be_bytes().repeat(12_500)).collect();
        let (sent, stopped) =
            send_patiently(&mut *transmitter, &frames, Duration::from_millis(200));
        assert!(matches!(stopped, Some(StopReason::Full)), "{stopped:?}");
        // 4 MiB, what the writer collects, and what the pipe holds.
        assert!((80..100).contains(&sent), "{sent} of 50,000 bytes each");
        assert!(port.counters().tx_full > 0);
        let started = Instant::now();
        drop((transmitter, port));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        // What was written is there.
        let mut head = [0; 24];
        reader.read_exact(&mut head).expect("written");
        assert_eq!(head[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    });
}

#[test]
fn what_a_reader_takes_late_is_whole_and_in_order() {
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, held) = pipe(directory.path());
        let path = directory.path().join("pipe");
        let mut port = port(&format!("{text}?mode=record"));
        let mut transmitter = port.transmitter().expect("records");
        let frames: Vec<_> =
            (0..200u32).map(|number| number.to_be_bytes().repeat(12_500)).collect();
        let (first, rest) = frames.split_at(1);
        assert!(matches!(send_patiently(&mut *transmitter, first, Duration::ZERO), (1, None)));
        let (read, taken) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            let mut reader = Reader::open(&path).expect("a capture");
            while let Some(frame) = reader.next_frame().expect("well formed") {
                read.send(frame.data.to_vec()).expect("somebody waits");
            }
        });
        assert_eq!(
            taken.recv_timeout(Duration::from_secs(10)).as_ref(),
            Ok(&first[0]),
            "it does not wait for others"
        );
        std::thread::sleep(Duration::from_millis(100));
        assert!(matches!(
            send_patiently(&mut *transmitter, rest, Duration::from_secs(20)),
            (199, None)
        ));
        drop((transmitter, port, held));
        reading.join().expect("no panic");
        assert_eq!(taken.iter().collect::<Vec<_>>(), rest);
    });
}

#[test]
fn a_reader_that_goes_away_ends_the_recording() {
    without_waiting(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (text, reader) = pipe(directory.path());
        let mut port = port(&format!("{text}?mode=record"));
        let mut transmitter = port.transmitter().expect("records");
        assert!(matches!(
            send_patiently(&mut *transmitter, &[vec![0; 60]], Duration::ZERO),
            (1, None)
        ));
        drop(reader);
        let started = Instant::now();
        let error = loop {
            match send_patiently(&mut *transmitter, &[vec![0; 60]], Duration::ZERO).1 {
                Some(StopReason::Gone(error)) => break error.to_string(),
                stopped => assert!(
                    stopped.is_none() && started.elapsed() < Duration::from_secs(10),
                    "{stopped:?}"
                ),
            }
        };
        assert!(error.contains("cannot be written"), "{error}");
        assert!(matches!(
            send_patiently(&mut *transmitter, &[vec![0; 60]], Duration::ZERO),
            (0, Some(StopReason::Gone(_)))
        ));
    });
}

#[test]
fn a_poll_never_crosses_a_hole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    write(&path, &[LinkType::ETHERNET], &flow()[..2]);
    // A record of zeros is an empty frame: 64 GB of them, and no byte on the disk.
    let length = std::fs::metadata(&path).expect("there").len();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(length + (64 << 30)))
        .expect("a hole");
    let mut port = port(&format!("pcap:{}?speed=max&loop=forever", path.display()));
    let (mut receiver, mut packets) = (port.receivers().remove(0), Vec::new());
    let begun = Instant::now();
    for _ in 0..20 {
        receiver.poll(&mut packets, 100).expect("well formed");
        assert!(is_ready(&*receiver, Duration::ZERO), "there may be more");
    }
    assert_eq!(packets.len(), 2);
    let skipped = port.counters().rx_errors;
    assert!((1..1_000_000).contains(&skipped), "{skipped} in {:?}", begun.elapsed());
}

#[test]
fn a_capture_that_begins_with_a_hole_opens_by_its_header() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    let frame = &flow()[0];
    let frame = (frame.0, frame.1[14..].to_vec(), 0);
    write(&path, &[LinkType::RAW], &[frame]);
    let whole = std::fs::read(&path).expect("there");
    let (header, record) = whole.split_at(24);
    std::fs::write(&path, header).expect("written");
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("there");
    // Two million empty frames, more than are looked through, and then one.
    file.set_len(24 + (2 << 20) * 16).expect("a hole");
    std::io::Write::write_all(&mut file, record).expect("written");
    let spec = format!("pcap:{}?speed=max", path.display());
    let mut behind = port(&spec);
    assert_eq!(behind.layer(), Layer::Ip);
    let skipped = behind.counters().rx_errors;
    assert!(skipped < 2 << 20, "opened before all was read: {skipped}");
    let packets = receive_all(&mut *behind.receivers().remove(0));
    assert_eq!((packets.len(), behind.counters().rx_errors), (1, 2 << 20));
    // Without end: 64 GB.
    file.set_len(64 << 30).expect("a hole");
    assert_eq!(port(&spec).layer(), Layer::Ip);
}

#[test]
fn what_stands_behind_many_frames_that_are_left_out_comes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("in.pcap");
    let frame = flow().remove(0);
    let mut frames = vec![frame.clone()];
    frames.extend(vec![(frame.0, Vec::new(), 0); 10_000]);
    frames.push(frame);
    write(&path, &[LinkType::ETHERNET], &frames);
    for (times, expected) in [("1", 2), ("3", 6)] {
        let mut port = port(&format!("pcap:{}?speed=max&loop={times}", path.display()));
        assert_eq!(receive_all(&mut *port.receivers().remove(0)).len(), expected);
        assert_eq!(port.counters().rx_errors, 10_000 * expected as u64 / 2);
    }
}
