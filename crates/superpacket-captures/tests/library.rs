//! Commands called as a library: with files and memory as input and output, and interrupted.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use superpacket_captures::file::{Frame, Source};
use superpacket_captures::{
    AnalyzeOptions, CoalesceOptions, CpuMask, Error, FlowRow, INTERVAL, Input, LinkType, Output,
    Packets, PacketsRow, PartOptions, Progress, Reader, Rows, Rules, SegmentOptions, SteerOptions,
    VerifyOptions, analyze, analyze_part, coalesce, segment, steer, verify,
};

/// Returns the path of the repository's capture.
fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz")
}

fn in_memory(path: &Path) -> Packets {
    let mut reader = Reader::open(path).expect("it is there");
    let mut packets = Packets::new();
    while let Some(frame) = reader.next_frame().expect("whole") {
        packets
            .push_cut(
                frame.link_type(),
                frame.time.map(|time| time.nanoseconds()),
                frame.data,
                frame.original_length.into(),
            )
            .expect("short");
    }
    packets
}

fn frames(packets: &Packets) -> Vec<(u64, Vec<u8>)> {
    packets
        .iter()
        .map(|frame| (frame.time.expect("it has one").nanoseconds(), frame.data.to_vec()))
        .collect()
}

/// A stream that passes on what is flushed.
struct Flushed {
    written: Vec<u8>,
    flushed: std::sync::mpsc::Sender<Vec<u8>>,
}

impl std::io::Write for Flushed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        // The receiver may have gone.
        let _ = self.flushed.send(std::mem::take(&mut self.written));
        Ok(())
    }
}

#[test]
fn a_live_stream_is_passed_on_before_it_ends() {
    let compressed = std::fs::File::open(demo()).expect("a capture");
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(compressed).read_to_end(&mut plain).expect("gzip");
    let (from, mut to) = std::io::pipe().expect("a pipe");
    let (sender, flushed) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let input = Input::Live { file: "from".into(), stream: Box::new(from) };
        let stream = Box::new(Flushed { written: Vec::new(), flushed: sender });
        let output = Output::Stream { file: "to".into(), stream };
        coalesce(input, output, &CoalesceOptions::default(), &mut ()).expect("a capture")
    });
    to.write_all(&plain).expect("it is read");
    let mut arrived = 0;
    while arrived == 0 {
        arrived += flushed.recv_timeout(Duration::from_secs(20)).expect("it flushes").len();
    }
    assert!(!thread.is_finished());
    drop(to);
    let report = thread.join().expect("it ends");
    assert_eq!((report.input.as_str(), report.output.as_str()), ("from", "to"));
    assert_eq!(report.totals.packets_in, in_memory(&demo()).len() as u64);
}

#[test]
fn files_and_memory_give_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, merged_path) = (demo(), folder.path().join("merged.pcapng"));
    let packets = in_memory(&path);
    let options = CoalesceOptions::default();
    let from_file = coalesce(Input::Path(&path), Output::Path(&merged_path), &options, &mut ())
        .expect("a capture");
    let mut merged = Packets::new();
    let from_memory =
        coalesce(Input::from(&packets), Output::Packets(&mut merged), &options, &mut ())
            .expect("packets");
    assert_eq!((from_memory.input.as_str(), from_memory.output.as_str()), ("memory", "memory"));
    assert_eq!(from_file.totals.reasons, from_memory.totals.reasons);
    assert!(from_file.totals.merged > from_file.totals.packets_out, "{:?}", from_file.totals);
    assert_eq!(frames(&in_memory(&merged_path)), frames(&merged));
    assert_eq!(merged.len() as u64, from_memory.totals.packets_out);

    let cut_path = folder.path().join("cut.pcap");
    let cut_file = segment(
        Input::Path(&merged_path),
        Output::Path(&cut_path),
        &SegmentOptions::default(),
        &mut (),
    )
    .expect("a capture");
    let mut cut = Packets::new();
    // Read back: what was merged in memory has the size of its segments too.
    let cut_memory = segment(
        Input::from(&in_memory(&merged_path)),
        Output::Packets(&mut cut),
        &SegmentOptions::default(),
        &mut (),
    )
    .expect("packets");
    assert_eq!(cut_file.totals.reasons, cut_memory.totals.reasons);
    assert_eq!(frames(&in_memory(&cut_path)), frames(&cut));

    let reader = Input::from(Reader::open(&path).expect("a capture"));
    let analysis =
        analyze(vec![reader, Input::from(&packets)], &AnalyzeOptions::default(), &mut ())
            .expect("both");
    let [file, memory] = analysis.files.as_slice() else { panic!("two captures") };
    assert_eq!(file.findings.totals.reasons, memory.findings.totals.reasons);
    assert_eq!(file.findings.totals.packets_out, from_file.totals.packets_out);
    assert!(analysis.page().expect("plots").contains("2 captures"));

    let checked =
        verify(vec![Input::Path(&path), Input::from(&packets)], &VerifyOptions::default(), &mut ())
            .expect("both");
    assert_eq!((checked.mismatches, checked.totals.packets_in), (0, 2 * packets.len() as u64));
    assert!(checked.segments > 0);

    let options =
        SteerOptions { cpus: "ff".parse::<CpuMask>().expect("a mask"), ..SteerOptions::default() };
    let spread = steer(Input::from(&packets), &options, &mut ()).expect("packets");
    let json = serde_json::to_value(&spread).expect("serializes");
    assert_eq!(json["cpus"].as_array().map(Vec::len), Some(8));
    assert_eq!(
        spread.flows[0].to_string().split(' ').next(),
        json["flows"][0]["proto"].as_str().map(str::to_uppercase).as_deref()
    );
}

#[test]
fn options_out_of_bounds_are_refused() {
    let packets = in_memory(&demo());
    let mut out = Packets::new();
    for (options, words) in [
        (
            CoalesceOptions { max_bytes: 67, ..CoalesceOptions::default() },
            "max_bytes: 67 is not between 68 and",
        ),
        (CoalesceOptions { acks: true, ..CoalesceOptions::default() }, "acks: needs LRO's rules"),
    ] {
        let error = coalesce(Input::from(&packets), Output::Packets(&mut out), &options, &mut ())
            .expect_err("refused");
        assert!(matches!(&error, Error::Options(text) if text.contains(words)), "{error}");
    }
    let lro = CoalesceOptions { acks: true, rules: Rules::Lro, ..CoalesceOptions::default() };
    assert!(
        coalesce(Input::from(&packets), Output::Packets(&mut out), &lro, &mut ())
            .expect("allowed")
            .absorbed_acks
            > 0
    );
    for (options, words) in [
        (
            SegmentOptions { mtu: 67, ..SegmentOptions::default() },
            "mtu: 67 is not between 68 and 65535",
        ),
        (
            SegmentOptions { udp_size: Some(0), ..SegmentOptions::default() },
            "udp_size: 0 is not between 1 and 65535",
        ),
    ] {
        let error = segment(Input::from(&packets), Output::Packets(&mut out), &options, &mut ())
            .expect_err("refused");
        assert!(matches!(&error, Error::Options(text) if text == words), "{error}");
    }
}

#[test]
fn a_file_is_not_written_over_itself() {
    let path = demo();
    let before = std::fs::read(&path).expect("it is there");
    let error =
        coalesce(Input::Path(&path), Output::Path(&path), &CoalesceOptions::default(), &mut ())
            .expect_err("refused");
    assert!(error.to_string().ends_with("is the input too; write to another file"), "{error}");
    assert_eq!(std::fs::read(&path).expect("it is there"), before);
}

/// Interrupts a command after this number of packets.
#[derive(Default)]
struct Stop {
    at: u64,
    told: Vec<(u64, u64)>,
    ended: usize,
}

impl Progress for Stop {
    fn advance(&mut self, packets: u64, bytes: u64) -> ControlFlow<()> {
        self.told.push((packets, bytes));
        if packets >= self.at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(&mut self) {
        self.ended += 1;
    }
}

#[test]
fn progress_stops_a_command_and_no_file_is_left() {
    let mut packets = Packets::new();
    for number in 0..3 * INTERVAL {
        packets.push(LinkType::ETHERNET, Some(number), &[0; 60]).expect("short");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.pcapng");
    let mut stop = Stop { at: 2 * INTERVAL, ..Stop::default() };
    let error = coalesce(
        Input::from(&packets),
        Output::Path(&path),
        &CoalesceOptions::default(),
        &mut stop,
    )
    .expect_err("stopped");
    assert!(matches!(error, Error::Interrupted));
    assert_eq!(stop.told, [(INTERVAL, 60 * INTERVAL), (2 * INTERVAL, 120 * INTERVAL)]);
    assert_eq!(stop.ended, 1);
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        0,
        "nothing half written"
    );
}

#[test]
fn one_of_several_captures_that_cannot_be_read_is_listed() {
    let (path, absent) = (demo(), demo().with_extension("absent"));
    let report =
        verify(vec![Input::Path(&absent), Input::Path(&path)], &VerifyOptions::default(), &mut ())
            .expect("one of two");
    assert_eq!((report.files.len(), report.unreadable.messages.len()), (1, 1));
    assert!(report.unreadable.messages[0].contains("cannot be opened"), "{:?}", report.unreadable);
    assert!(matches!(
        verify(vec![Input::Path(&absent)], &VerifyOptions::default(), &mut ()),
        Err(Error::Capture(_))
    ));
}

/// Keeps the rows of packets by time and size.
struct PacketsRows(Vec<PacketsRow>);

impl Rows for PacketsRows {
    fn flows(&mut self, _rows: &[FlowRow]) -> Result<(), Error> {
        Ok(())
    }

    fn packets(&mut self, rows: &[PacketsRow]) -> Result<(), Error> {
        self.0.extend_from_slice(rows);
        Ok(())
    }
}

#[test]
fn packets_leave_at_the_times_of_their_first_frames() {
    let interval = 1_000_000;
    let options =
        PartOptions { analyze: AnalyzeOptions::default(), interval, first: 1, continues: false };
    let mut rows = PacketsRows(Vec::new());
    let path = demo();
    let part = analyze_part(Input::Path(&path), &options, &mut rows, &mut ()).expect("reads");
    let (first, last) = (part.first_time.expect("times"), part.last_time.expect("times"));
    let (mut arrived, mut left) = (0, 0);
    for row in &rows.0 {
        let time = row.time.expect("all packets have times");
        assert!((first - first % interval..=last).contains(&time), "{row:?}");
        arrived += row.packets_in;
        left += row.packets_out;
        assert!(left <= arrived, "more left than had arrived: {row:?}");
    }
    assert!(0 < left && left < arrived, "{left} of {arrived}");
}

#[test]
fn a_part_of_a_capture_with_a_filter_is_refused() {
    let (packets, analyze) = (Packets::new(), AnalyzeOptions::default());
    for (first, continues) in [(2, false), (1, true)] {
        let options = PartOptions { analyze: analyze.clone(), interval: 1, first, continues };
        let input = Input::from(&packets).filtered("tcp");
        let refused = analyze_part(input, &options, &mut (), &mut ());
        assert!(matches!(refused, Err(Error::Options(_))), "{refused:?}");
    }
}

#[cfg(feature = "filter")]
#[test]
fn any_input_can_have_filters() {
    let path = demo();
    let packets = in_memory(&path);
    let counts = |input: Input<'_>| {
        let report = steer(input, &SteerOptions::default(), &mut ()).expect("a capture");
        (report.totals.packets_in, report.totals.filtered_out)
    };
    let (tcp, others) = counts(Input::Path(&path).filtered("tcp"));
    assert!(tcp > 0 && others > 0, "{tcp} and {others}");
    let reader = Reader::open(&path).expect("a capture");
    assert_eq!(counts(Input::from(reader).filtered("tcp")), (tcp, others));
    assert_eq!(counts(Input::from(&packets).filtered("tcp")), (tcp, others));
    // The packets match both.
    let (long, short) = counts(Input::Path(&path).filtered("tcp").filtered("greater 1000"));
    assert!(long > 0 && long < tcp && long + short == tcp + others, "{long}, {short}");
}

fn sorted(packets: &Packets) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = packets.iter().map(|frame| frame.data.to_vec()).collect();
    frames.sort();
    frames
}

#[test]
fn what_merges_in_memory_is_cut_into_the_same_frames() {
    let whole = in_memory(&demo());
    let merge = |packets: &Packets| {
        let mut merged = Packets::new();
        let options = CoalesceOptions::default();
        coalesce(Input::from(packets), Output::Packets(&mut merged), &options, &mut ())
            .expect("merges");
        merged
    };
    let once = merge(&whole);
    let twice = merge(&once);
    assert!(once.len() < whole.len() / 2 && twice.len() <= once.len());
    for merged in [once, twice] {
        let is_udp_super_packet = |frame: &Frame<'_>| {
            frame.options.segment_size().is_some() && frame.data.get(23) == Some(&17)
        };
        assert!(merged.iter().any(|frame| is_udp_super_packet(&frame)));
        let mut cut = Packets::new();
        // No frame exceeds this MTU.
        let options = SegmentOptions { mtu: 65_535, ..SegmentOptions::default() };
        let report = segment(Input::from(&merged), Output::Packets(&mut cut), &options, &mut ())
            .expect("cuts");
        assert_eq!((cut.len(), report.uncut), (whole.len(), 0));
        assert_eq!(sorted(&cut), sorted(&whole));
    }
}
