//! Tests of the screen's contents at several sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

fn counted(rate: f64, total: u64) -> CounterRate {
    CounterRate { rate, total }
}

fn port(name: &str) -> PortRates {
    PortRates {
        port: name.into(),
        state: "up".into(),
        offloads: vec!["gro".into(), "tso".into()],
        rx_packets: 812_345.0,
        rx_bits: 9.87e9,
        merged: 790_000.0,
        packets_per_aggregate: 36.4,
        packets_per_rx_super_packet: 44.9,
        tx_packets: 22_300.0,
        tx_bits: 12.345e9,
        packets_per_super_packet: 41.2,
        segmented: 3.0,
        segmented_for_ids: 0.0,
        lro: BTreeMap::new(),
        drops: [
            ("rx_ring".to_owned(), counted(12.0, 3456)),
            ("too_long".to_owned(), counted(0.0, 0)),
        ]
        .into(),
        reasons: [
            ("poll_end".to_owned(), counted(18_000.0, 2_000_000)),
            ("no_payload".to_owned(), counted(700.0, 9_000)),
        ]
        .into(),
    }
}

/// Returns a screen after `seconds` seconds, with one port that is up and one that is gone.
fn two_ports(seconds: usize) -> Screen {
    let mut screen =
        Screen { title: "/run/superpacket.sock".into(), ..Screen::new(Duration::from_secs(1)) };
    for second in 0..seconds {
        let mut first = port("packet:eth0");
        first.rx_bits *= (second + 1) as f64 / seconds as f64;
        screen.show(vec![
            first,
            PortRates {
                port: "xdp:enp3s0f0?queue=0".into(),
                state: "gone".into(),
                ..PortRates::default()
            },
        ]);
        screen.record();
    }
    screen
}

fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, screen)).expect("draws");
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()
        })
        .collect()
}

#[test]
fn it_fits_80_columns_and_24_rows() {
    let lines = lines(&mut two_ports(60), 80, 24);
    assert_eq!(
        lines,
        [
            "superpacket top  /run/superpacket.sock  2 ports  812k p/s  9.87 Gb/s",
            "                              rx    rx     rx    rx    tx    tx    tx    tx",
            "port                 state   p/s   b/s merged  each   p/s   b/s  each cut/s",
            "packet:eth0          up     812k 9.87G   790k  44.9 22.3k 12.3G  41.2     3",
            "xdp:enp3s0f0?queue=0 gone      0     0      0     -     0     0     -     0",
            "",
            "packet:eth0  on: gro tso",
            "rx 9.87 Gb/s, most 9.87 Gb/s             tx 12.3 Gb/s, most 12.3 Gb/s",
            "                                ▁▂▃▄▅▆▇  ███████████████████████████████████████",
            "                        ▁▂▃▄▅▆▇████████  ███████████████████████████████████████",
            "                ▁▂▃▄▅▆▇████████████████  ███████████████████████████████████████",
            "         ▁▂▃▅▆▇████████████████████████  ███████████████████████████████████████",
            " ▁▂▃▄▅▆▇███████████████████████████████  ███████████████████████████████████████",
            "",
            "xdp:enp3s0f0?queue=0  rx idle  tx idle  on: none",
            "",
            "port                 drops by cause          per s  total",
            "packet:eth0          rx_ring                    12  3.46k",
            "",
            "port                 reason, single first    per s  total",
            "packet:eth0          no_payload                700  9.00k",
            "packet:eth0          poll_end                18.0k  2.00M",
            "each: frames in a super-packet; merged/s joined others; cut/s were segmented",
            "bars: bits in the last minute, up to the most in it   q quit   up/down scroll",
        ]
    );
}

#[test]
fn a_large_screen_is_filled() {
    let lines = lines(&mut two_ports(60), 200, 50);
    // The bars take the remaining space, and no row is cut off or needlessly empty.
    let bars = lines.iter().filter(|line| line.contains('█')).count();
    assert!(bars >= 14, "{bars} rows of bars: {lines:#?}");
    let [rx, tx] = ["rx 9.87 Gb/s, most 9.87 Gb/s", "tx 12.3 Gb/s, most 12.3 Gb/s"];
    assert_eq!(lines[7], format!("{rx:101}{tx}"));
    let at = lines.iter().position(|line| line.contains("drops by cause")).expect("the lists");
    assert!(
        lines[at].contains("reason, single first")
            && lines[at + 2].ends_with("poll_end                18.0k  2.00M"),
        "side by side: {lines:#?}"
    );
    assert_eq!(at + 5, 50, "they end right above the legend");
}

#[test]
fn it_can_be_resized_to_anything() {
    let mut screen = Screen { title: "/run/s".into(), ..Screen::new(Duration::from_secs(1)) };
    screen.show((0..100).map(|number| port(&format!("packet:veth{number}"))).collect());
    screen.record();
    for (width, height) in
        [(1, 1), (10, 3), (40, 10), (200, 60), (80, 24), (119, 7), (120, 8), (300, 300)]
    {
        lines(&mut screen, width, height);
    }
    screen.scroll(1000);
    assert!(lines(&mut screen, 80, 24)[3].starts_with("packet:veth99"), "the last can be reached");
    screen.scroll(-1000);
    assert!(lines(&mut screen, 80, 24)[3].starts_with("packet:veth0 "));
    screen.scroll(5);
    screen.show(vec![port("packet:only")]);
    assert!(lines(&mut screen, 80, 24)[3].starts_with("packet:only"), "fewer ports are there");
}

#[test]
fn an_unreachable_bridge_is_reported_and_the_last_figures_stay() {
    let mut screen = two_ports(3);
    screen.problem = Some("nobody listens there any more\u{1b}[2J".into());
    (0..10).for_each(|_| screen.record_nothing());
    let lines = lines(&mut screen, 80, 24);
    assert!(
        lines[0].contains("nobody listens there any more\\u{1b}[2J")
            && lines[3].starts_with("packet:eth0"),
        "{lines:?}"
    );
    // The bars move to the left, and intervals without data are empty.
    let bars = lines.iter().find(|line| line.contains('█')).expect("the history stays");
    assert!((60..76).contains(&bars.chars().count()), "{bars:?}");
}

#[test]
fn lro_counters_are_shown_for_ports_that_used_it() {
    let mut screen = Screen::new(Duration::from_secs(1));
    let lro = [
        ("aggregated", counted(790_000.0, 5_000_000)),
        ("flushed", counted(18_000.0, 100_000)),
        ("no_desc", counted(4.0, 77)),
    ];
    screen.show(vec![
        PortRates { lro: lro.into(), ..port("nic:lro@packet:eth0") },
        port("packet:eth1"),
    ]);
    let lines = lines(&mut screen, 80, 24);
    let at = lines.iter().position(|line| line.starts_with("LRO port")).expect("its list");
    assert_eq!(lines[at], "LRO port            aggr./s  total flush/s  total no_desc/s  total");
    assert_eq!(lines[at + 1], "nic:lro@packet:eth0    790k  5.00M   18.0k   100k         4     77");
    assert_eq!(lines[at + 2], "", "the other port did nothing by it");
}

#[test]
fn numbers_keep_to_their_width() {
    for (value, text) in [
        (0.0, "0"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (12_345.0, "12.3k"),
        (99_960.0, "100k"),
        (999_999.0, "1.00M"),
        (1.5e9, "1.50G"),
        (7e12, "7.00T"),
    ] {
        assert_eq!(number(value), text);
    }
    assert_eq!(
        ["0 b/s", "45.6 kb/s", "1.20 Mb/s", "10.0 Gb/s"].map(str::to_owned),
        [0.0, 45_600.0, 1.2e6, 9.996e9].map(bit_rate)
    );
}

#[test]
fn an_idle_direction_leaves_its_room_to_the_other() {
    let mut screen = Screen::new(Duration::from_secs(1));
    let sends = PortRates { rx_bits: 900.0, tx_bits: 2e6, ..port("packet:eth0") };
    let idle = PortRates { rx_bits: 0.0, tx_bits: 500.0, offloads: vec![], ..port("packet:eth1") };
    screen.show(vec![sends, idle]);
    (0..60).for_each(|_| screen.record());
    let lines = lines(&mut screen, 80, 24);
    assert_eq!(
        [&lines[6], &lines[7]],
        ["packet:eth0  rx 900 b/s  on: gro tso", "tx 2.00 Mb/s, most 2.00 Mb/s"]
    );
    assert_eq!(lines[8], "█".repeat(80), "all columns");
    let at = lines.iter().position(|line| line.starts_with("packet:eth1  rx")).expect("its row");
    assert_eq!(lines[at], "packet:eth1  rx idle  tx 500 b/s  on: none");
    assert_eq!(lines[at + 1], "", "no room for bars of an idle port");
}
