//! `superpacket analyze`: the comparison of policies, and the page.

use crate::support::browser::open;
use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::Frame;

/// Returns a TCP flow with a changing window, its acknowledgements, and UDP.
fn traffic() -> Vec<CapturedFrame> {
    let mut data = tcp_flow(40, 1000);
    for frame in &mut data[20..] {
        frame.tcp_mut().window = 777;
    }
    let udp = Frame::udp4(1100).with_id(1).run(40);
    let mut frames = Vec::new();
    for index in 0..40 {
        frames.push(data[index].clone());
        frames.push(udp[index].clone());
        if index % 2 == 1 {
            frames.push(from_host(
                Frame::tcp4(9, 0)
                    .with(|frame| frame.tcp_mut().acknowledgement = 1000 * (index as u32 + 1)),
                8,
            ));
        }
    }
    spaced(&frames)
}

#[test]
fn policies_are_compared_in_one_pass() {
    let bench = Bench::new();
    bench.capture("in.pcap", &traffic());
    let report = bench.json("analyze in.pcap --batch 0");
    let out = |policy: &str| report["policies"][policy]["packets_out"].as_u64().expect("a number");
    assert_eq!(out("lro"), 1 + 40 + 20, "the window does not matter");
    assert_eq!(out("gro"), 2 + 40 + 20);
    assert_eq!(out("gro_udp"), 2 + 1 + 20);
    assert_eq!(out("lro_acks"), 1 + 40 + 1);
    assert_eq!(report["policies"]["lro_acks"]["absorbed_acks"], 19);
    assert_eq!(report["policies"]["lro"]["packets_per_super_packet"], 40.0);
    assert_eq!(report["policies"]["gro_udp"]["reasons"]["window"], 1);
    assert_eq!(
        (report["traffic"]["pure_acks"].as_u64(), report["traffic"]["ack_share"].as_f64()),
        (Some(20), Some(0.2))
    );
    assert_json(&report["traffic"], json!({ "tcp_packets": 60, "udp_packets": 40 }));
    // The common keys have the values that coalesce gives by default.
    let coalesced = bench.json("coalesce in.pcap -o out.pcap --batch 0");
    for key in
        ["packets_in", "packets_out", "bytes_in", "bytes_out", "super_packets", "merged", "reasons"]
    {
        assert_eq!(report[key], coalesced[key], "{key}");
        assert_eq!(report["files"][0][key], coalesced[key], "{key}");
    }
    let top = report["top_flows"].as_array().expect("an array");
    assert_eq!(top.len(), 3);
    assert_eq!(
        (top[0]["packets_in"].as_u64(), top[0]["packets_out"].as_u64(), top[0]["exact"].as_bool()),
        (Some(40), Some(1), Some(true)),
        "UDP has more bytes"
    );
    assert_eq!(
        bench.json("analyze in.pcap --top 1")["top_flows"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn files_are_reported_each_and_together() {
    let bench = Bench::new();
    bench.capture("a.pcap", &traffic());
    bench.capture("b.pcap", &traffic());
    let report = bench.json("analyze a.pcap b.pcap");
    assert_eq!(report["packets_in"], 200);
    assert_eq!(report["files"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        report["policies"]["gro"]["packets_out"].as_u64(),
        report["files"][0]["policies"]["gro"]["packets_out"].as_u64().map(|out| 2 * out)
    );
    assert_eq!(report["top_flows"][0]["packets_in"], 80);
    let text = bench.prints("analyze a.pcap b.pcap");
    for word in [
        "a.pcap",
        "all 2 files",
        "LRO",
        "GRO with UDP",
        "pure ACKs 20, 20.0 %",
        "super-packets",
        "UDP 10.0.",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "in a pipe, too: {text}");
}

#[test]
fn a_capture_that_is_merged_already_is_recognized() {
    let bench = Bench::new();
    for (payload, ending) in
        [(1460, None), (4000, Some(", or its network has jumbo frames")), (30_000, Some(""))]
    {
        bench.capture("in.pcap", &spaced(&[Frame::tcp4(1, payload), Frame::tcp4(1, 100)]));
        let text = bench.prints("analyze in.pcap --html page.html");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let page = std::fs::read_to_string(bench.path("page.html")).expect("written");
        let line = "1 frames above 1,518 bytes: an offload merged this capture already";
        for printed in [&text, &page] {
            assert_eq!(printed.contains(line), ending.is_some(), "{payload}: {text}");
            if let Some(ending) = ending {
                let line = format!("{line}{ending}; `segment` undoes it");
                assert!(printed.contains(&line), "{text}");
            }
        }
    }
}

/// Writes a capture whose names contain HTML markup.
fn hostile(bench: &Bench) -> &'static str {
    let interface = Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)
        .named("<script>document.title='owned'</script>\"'&\u{1b}[2J");
    let name =
        if cfg!(windows) { "in'&amp;.pcapng" } else { "<img src=x onerror=alert(1)>'&.pcapng" };
    bench.capture_of(name, &[interface], &traffic());
    name
}

#[test]
fn the_page_is_self_contained_and_escapes_text_of_the_capture() {
    let bench = Bench::new();
    let name = hostile(&bench);
    let text = bench.prints(&["analyze", name, "--html", "report.html"]);
    assert!(!text.contains('\x1b'), "no control character of the capture reaches the terminal");
    let page = std::fs::read_to_string(bench.path("report.html")).expect("is there");
    // The page may break names after their separators.
    assert!(page.replace("<wbr>", "").contains(
        "&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;&quot;&#39;&amp;\\u{1b}[2J"
    ));
    for forbidden in
        ["<script", "<img", "http://", "https://", "src=\"", "href=\"", "url(", "@import", "\u{1b}"]
    {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!(
        page.matches("<svg role=\"img\"").count(),
        4,
        "sizes and packets over time, each wide and narrow"
    );
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("prefers-color-scheme: dark"));
    for words in [
        "Sizes before and after",
        "Bytes in frames of each length.",
        "Reasons",
        "what it means",
        "Packets over time",
        "Policies side by side",
        "Flows with the most bytes",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let names: Vec<_> = std::fs::read_dir(bench.path("."))
        .expect("lists")
        .map(|entry| entry.expect("lists").file_name())
        .collect();
    assert_eq!(names.len(), 2, "no temporary file stays: {names:?}");
}

#[test]
fn the_page_does_not_overwrite_an_input() {
    let bench = Bench::new();
    let path = bench.capture("in.pcap", &traffic());
    let before = std::fs::read(&path).expect("reads");
    for html in ["in.pcap", "-", "absent/report.html"] {
        bench.refuses(&["analyze", "in.pcap", "--html", html], "");
    }
    assert_eq!(std::fs::read(&path).expect("reads"), before);
}

/// Renders the page in a real browser, in both colour schemes, and checks the picture. Needs
/// `chromium`.
#[test]
fn a_browser_shows_the_page() {
    let bench = Bench::new();
    let name = hostile(&bench);
    bench.json(&["analyze", name, "--html", "report.html"]);
    let run = |dark, argument: &str| {
        open(
            &bench,
            "report.html",
            dark,
            &["--hide-scrollbars", "--window-size=1000,1800", argument],
        )
    };
    let Some(output) = run(false, "--dump-dom") else { return };
    let document = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        document.contains("Packets over time") && !document.contains("<title>owned"),
        "nothing of the capture ran"
    );
    let [light, dark] = [false, true].map(|dark| {
        let picture = bench.path(&format!("{dark}.png"));
        run(dark, &format!("--screenshot={}", picture.display()));
        std::fs::read(picture).expect("a picture")
    });
    for picture in [&light, &dark] {
        assert_eq!(picture[..8], *b"\x89PNG\r\n\x1a\n");
        // An empty page of this size compresses to a few KB; a page with tables and three plots
        // does not.
        assert!(picture.len() > 40_000, "{} bytes", picture.len());
    }
    assert!(light != dark, "the page follows the colour scheme");
}
