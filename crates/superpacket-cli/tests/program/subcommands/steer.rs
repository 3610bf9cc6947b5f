//! `superpacket steer`: the CPUs of an imaginary host to which flows would go.

use std::net::SocketAddr;

use crate::support::*;
use superpacket_captures::file::{Interface, LinkType, TimeResolution};
use superpacket_traffic::frame::Frame;

/// The verification suite of Microsoft's RSS specification: source, destination, hash with ports.
const PUBLISHED: [(&str, &str, u32); 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
    (
        "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
        "[fe80::200:f8ff:fe21:67cf]:38024",
        0x02d1_feef,
    ),
];

/// Returns a TCP segment between these ends.
fn between(source: &str, destination: &str) -> Frame {
    let [from, to]: [SocketAddr; 2] =
        [source, destination].map(|text| text.parse().expect("well formed"));
    let frame = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => Frame::tcp4(1, 100).with(|frame| {
            let ip = frame.ipv4_mut();
            (ip.source, ip.destination) = (from.ip().octets(), to.ip().octets());
        }),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => Frame::tcp6(1, 100).with(|frame| {
            let ip = frame.ipv6_mut();
            (ip.source, ip.destination) = (from.ip().octets(), to.ip().octets());
        }),
        _ => panic!("two versions"),
    };
    frame.with(|frame| {
        let tcp = frame.tcp_mut();
        (tcp.source_port, tcp.destination_port) = (from.port(), to.port());
    })
}

/// Returns the published flows, the first with one packet, the second with two, and so on.
fn published() -> Vec<CapturedFrame> {
    let flows = PUBLISHED.iter().enumerate();
    spaced(
        &flows
            .flat_map(|(index, (source, destination, _))| {
                between(source, destination).run(index + 1)
            })
            .collect::<Vec<_>>(),
    )
}

fn rows<'a>(report: &'a Value, key: &str) -> &'a [Value] {
    report[key].as_array().expect("an array")
}

#[test]
fn published_flows_go_where_the_kernel_sends_them() {
    let bench = Bench::new();
    bench.capture("in.pcap", &published());
    // CPUs 2, 3, 5 and 40, as a mask and as a list.
    for host in [["--cpus", "100,0000002c"], ["--cpus", "0,,100,2C"], ["--cpu-list", "2-3,5,40"]] {
        let report = bench.json(&["steer", "in.pcap", host[0], host[1]]);
        assert_json(
            &report,
            json!({
                "command": "steer", "file": "in.pcap", "mask": "100,0000002c",
                "cpu_list": "2-3,5,40", "packets_in": 36, "packets_out": 36,
                "reasons": { "steered": 36 }
            }),
        );
        let flows = rows(&report, "flows");
        assert_eq!(flows.len(), 8);
        for (index, (source, destination, hash)) in PUBLISHED.iter().enumerate() {
            let [from, to]: [SocketAddr; 2] =
                [*source, *destination].map(|text| text.parse().expect("well formed"));
            // The flows with the most packets come first.
            let flow = &flows[7 - index];
            assert_json(
                flow,
                json!({
                    "src": from.ip(), "dst": to.ip(),
                    "sport": from.port(), "dport": to.port(),
                    "proto": "tcp", "hash": format!("{hash:08x}")
                }),
            );
            let cpu = [2, 3, 5, 40][(*hash >> 30) as usize];
            assert_eq!(
                (number(&flow["cpu"]), number(&flow["packets"])),
                (cpu, index as u64 + 1),
                "{source}"
            );
        }
        let mut most = 0;
        for cpu in rows(&report, "cpus") {
            let own: Vec<_> = flows.iter().filter(|flow| flow["cpu"] == cpu["cpu"]).collect();
            assert_eq!(number(&cpu["flows"]), own.len() as u64);
            assert_eq!(
                number(&cpu["packets"]),
                own.iter().map(|flow| number(&flow["packets"])).sum::<u64>()
            );
            most = most.max(number(&cpu["packets"]));
        }
        assert_eq!(
            rows(&report, "cpus").iter().map(|cpu| number(&cpu["cpu"])).collect::<Vec<_>>(),
            [2, 3, 5, 40]
        );
        assert_eq!(report["imbalance"].as_f64(), Some(most as f64 / 9.0), "36 packets over 4 CPUs");
    }
}

#[test]
fn keys_directions_and_tunnels() {
    let bench = Bench::new();
    let there = between(PUBLISHED[0].0, PUBLISHED[0].1);
    bench.capture("both.pcap", &spaced(&[there.clone(), there.reversed()]));
    let hashes = |arguments: &[&str]| {
        let report = bench.json(&[&["steer"], arguments].concat());
        rows(&report, "flows")
            .iter()
            .map(|flow| flow["hash"].as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    let plain = hashes(&["both.pcap", "--cpus", "f"]);
    assert_eq!(plain[0], "51ccc178");
    assert_ne!(plain[0], plain[1]);
    let symmetric = hashes(&["both.pcap", "--cpus", "f", "--symmetric"]);
    assert_eq!(symmetric[0], symmetric[1]);
    // A key of two repeated bytes, by which symmetric hashing was done before there was an option
    // for it.
    let key = "6d5a".repeat(20);
    let repeated = hashes(&["both.pcap", "--cpus", "f", "--key", &key]);
    assert_eq!(repeated[0], repeated[1]);
    assert_ne!(repeated[0], plain[0]);
    bench.capture(
        "tunnel.pcap",
        &spaced(&[
            there.clone().in_gre(),
            there.reversed().in_gre(),
            between(PUBLISHED[1].0, PUBLISHED[1].1).in_gre(),
        ]),
    );
    assert_eq!(hashes(&["tunnel.pcap", "--cpus", "f"]), [&plain[0], &plain[1], "c626b0ea"]);
    let report = bench.json("steer tunnel.pcap --cpus f --outer");
    let flows = rows(&report, "flows");
    assert_eq!(
        (flows.len(), number(&flows[0]["packets"]), flows[0]["proto"].as_str()),
        (1, 3, Some("gre"))
    );
    assert_eq!((flows[0]["sport"].as_u64(), report["headers"].as_str()), (None, Some("outer")));
}

#[test]
fn packets_that_are_not_steered_are_counted_by_kind() {
    let bench = Bench::new();
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let mut ospf = Frame::udp4(40).to_bytes();
    ospf[14 + 9] = 89;
    let mut frames = vec![CapturedFrame::at(0, arp), CapturedFrame::at(0, ospf)];
    frames.extend(spaced(&Frame::udp6(3000).fragments(1400, 1)));
    // The snap length cut the payload, not the ports.
    let whole = Frame::udp4(1000).to_bytes();
    frames.push(CapturedFrame {
        original_length: whole.len() as u32,
        ..CapturedFrame::at(0, whole[..60].to_vec())
    });
    bench.capture("in.pcap", &frames);
    let report = bench.json("steer in.pcap --cpus 3");
    assert_json(&report["reasons"], json!({ "no_hash": 1, "steered": 5 }));
    assert_eq!(reasons(&report), number(&report["packets_out"]));
    let of = |proto: &str, ports: bool| {
        rows(&report, "flows")
            .iter()
            .find(|flow| flow["proto"] == proto && flow["sport"].is_u64() == ports)
            .map(|flow| number(&flow["packets"]))
    };
    assert_eq!((of("ospf", false), of("udp", false), of("udp", true)), (Some(1), Some(3), Some(1)));
    // An empty mask switches steering off: all packets stay.
    for off in ["", "0", ","] {
        let report = bench.json(&["steer", "in.pcap", "--cpus", off]);
        assert_eq!((number(&report["reasons"]["no_cpus"]), rows(&report, "cpus").len()), (5, 0));
        assert!(
            rows(&report, "flows").iter().all(|flow| flow["cpu"].is_null())
                && report["imbalance"].is_null()
        );
        assert!(bench.prints(&["steer", "in.pcap", "--cpus", off]).contains("steering is off"));
    }
    bench.capture_of(
        "can.pcap",
        &[Interface::new(LinkType(227), TimeResolution::NANOSECONDS)],
        &[CapturedFrame::at(0, vec![0; 16])],
    );
    assert_eq!(number(&bench.json("steer can.pcap --cpus 3")["reasons"]["link_type"]), 1);
}

#[test]
fn the_flow_limit_drops_from_flows_with_more_than_half() {
    let bench = Bench::new();
    // Three of four packets belong to one flow, and each of the others to a flow of its own.
    let heavy = between(PUBLISHED[0].0, PUBLISHED[0].1).run(1500);
    let frames: Vec<_> = (0..2000usize)
        .map(|index| {
            if index % 4 == 3 {
                from_host(Frame::tcp4(1, 10), index as u32)
            } else {
                heavy[index / 4 * 3 + index % 4].clone()
            }
        })
        .collect();
    bench.capture("in.pcap", &spaced(&frames));
    let report = bench.json("steer in.pcap --cpus f");
    let limit = &report["flow_limit"];
    assert_eq!((number(&limit["flows"]), number(&limit["history"])), (1, 128));
    // All packets of the flow except the first 64.
    assert_eq!(number(&limit["packets"]), 1500 - 64);
    assert_eq!(number(&rows(&report, "flows")[0]["flow_limited"]), 1500 - 64);
    assert_eq!(
        rows(&report, "cpus").iter().map(|cpu| number(&cpu["flow_limited"])).sum::<u64>(),
        1500 - 64
    );
    let text = bench.prints("steer in.pcap --cpus f --top 1");
    for words in [
        "4 CPUs, 0-3",
        "with the published key",
        "Imbalance: the busiest CPU has 3.",
        "1,436 packets (71.8 %) of 1 flows dropped",
        "51ccc178",
    ] {
        assert!(
            text.split_whitespace().collect::<Vec<_>>().join(" ").contains(words),
            "{words}: {text}"
        );
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "in a pipe, too: {text}");
}

#[test]
fn unreadable_arguments_and_files_are_named() {
    let bench = Bench::new();
    bench.capture("in.pcap", &published());
    let short = "6d".repeat(39);
    for (arguments, words) in [
        (
            &["--cpus", "0x3"][..],
            "invalid value '0x3' for '--cpus <MASK>': EINVAL: 'x' at byte 1, in chunk \"0x3\", is not a hexadecimal digit",
        ),
        (
            &["--cpus", "1,123456789"],
            "EOVERFLOW: chunk \"123456789\" at byte 2 has more than 8 digits",
        ),
        (&["--cpus", "0-3"], "EINVAL: '-' at byte 1"),
        (&["--cpus", "-1"], "EINVAL: '-' at byte 0"),
        (&["--cpu-list", "0-8192"], "ERANGE: \"0-8192\" at byte 0 exceeds CPU 8191"),
        (&["--cpu-list", "0-3,f"], "EINVAL: \"f\" at byte 4"),
        (&["--cpus", "3", "--cpu-list", "0"], "cannot be used with"),
        (&["--cpus", "3", "--key", &short], "80 hexadecimal digits or more; this one has 78"),
        (&["--cpus", "3", "--html", "in.pcap"], "is the input too"),
        (&["--cpus", "3", "--html", "-"], "--html needs a file"),
        (&[], "required"),
    ] {
        bench.refuses(&[&["steer", "in.pcap"], arguments].concat(), words);
    }
    bench.refuses("steer absent.pcap --cpus 3", "absent.pcap");
    // A truncated file gives a warning, or with --strict an error.
    let bytes = bench.bytes("in.pcap");
    bench.write("cut.pcap", &bytes[..bytes.len() - 3]);
    let report = bench.json("steer cut.pcap --cpus 3");
    assert_eq!((number(&report["packets_in"]), number(&report["cut_short"]["packet"])), (35, 36));
    bench.refuses("steer cut.pcap --cpus 3 --strict", "");
}

#[test]
fn flows_beyond_the_room_there_is_are_said_to_be_left_out() {
    let bench = Bench::new();
    bench.json("generate flows.pcap --size 10M --flows 60000 --burst 1 --payload 10");
    let report = bench.json("steer flows.pcap --cpus ff");
    let listed: u64 = rows(&report, "flows").iter().map(|flow| number(&flow["packets"])).sum();
    assert_eq!(rows(&report, "flows").len(), 100_000);
    let left_out = number(&report["left_out"]["packets"]);
    assert!(left_out > 1000);
    assert_eq!(listed + left_out, number(&report["packets_in"]));
    assert_eq!(
        rows(&report, "cpus").iter().map(|cpu| number(&cpu["packets"])).sum::<u64>(),
        number(&report["packets_in"])
    );
    let output = bench.run("steer flows.pcap --cpus ff");
    assert!(
        stderr(&output)
            .contains("warning: flows.pcap: flows beyond the first 100,000 are not listed"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_page_is_self_contained_and_escapes_the_file_s_name() {
    let bench = Bench::new();
    let name = if cfg!(windows) { "in'&amp;.pcap" } else { "<img src=x onerror=alert(1)>'&.pcap" };
    bench.capture(name, &published());
    bench.prints(&["steer", name, "--cpus", "ff", "--html", "report.html"]);
    let page = std::fs::read_to_string(bench.path("report.html")).expect("is there");
    // The page may break names after their separators.
    let page = page.replace("<wbr>", "");
    for forbidden in
        ["<script", "<img", "http://", "https://", "src=\"", "href=\"", "url(", "@import"]
    {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!((page.matches("<svg role=\"img\"").count(), page.matches("</svg>").count()), (2, 2));
    for words in [
        "superpacket steer</title>",
        "Share by CPU",
        "Flows with the most packets",
        "51ccc178",
        "prefers-color-scheme: dark",
        "TCP 66.9.149.187:2794 &gt; 161.142.100.80:1766",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_list_given_as_a_mask_names_the_other_option() {
    let bench = Bench::new();
    bench.capture("in.pcap", &published());
    bench.refuses("steer in.pcap --cpus 0-7", "--cpu-list 0-7");
    let output = bench.run("steer in.pcap --cpus xyz");
    assert!(!stderr(&output).contains("--cpu-list"), "{}", stderr(&output));
}
