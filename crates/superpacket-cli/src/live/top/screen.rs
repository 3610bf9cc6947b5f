//! What `superpacket top` draws.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::rates::PortRates;
use crate::report::printable;

/// What is on the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Where the bridge is controlled.
    pub(super) title: String,
    /// Why there is nothing new.
    pub(super) problem: Option<String>,
    ports: Vec<PortRates>,
    state: TableState,
}

impl Screen {
    /// Shows these from now on.
    pub(super) fn show(&mut self, ports: Vec<PortRates>) {
        self.ports = ports;
        self.scroll(0);
    }

    /// Moves the first port that is shown.
    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.ports.len().saturating_sub(1);
        *self.state.offset_mut() = self.state.offset().saturating_add_signed(by).min(last);
    }
}

/// The widths of the columns but for the port, which takes the rest: 80 columns leave it 22.
const COLUMNS: [(&str, u16); 9] =
    [("state", 5), ("rx p/s", 6), ("Gb/s", 5), ("merged", 6), ("each", 5), ("tx p/s", 6), ("Gb/s", 5), ("each", 5), ("cut/s", 6)];

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let drops = drops(&screen.ports);
    // Ports come first; what is left, at least a third, is for the drops.
    let rows = (screen.ports.len() as u16).saturating_add(1);
    let [title, ports, space, below, legend] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rows.min(frame.area().height * 2 / 3)),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    let _ = space;
    frame.render_widget(heading(screen), title);
    draw_ports(frame, ports, screen);
    draw_drops(frame, below, &drops);
    let keys = Line::from("merged/s joined others; each: packets in a super-packet; cut: packets segmented").dim();
    frame.render_widget(Paragraph::new(vec![keys, Line::from("q quit   up/down scroll").dim()]), legend);
}

fn heading(screen: &Screen) -> Line<'static> {
    let mut line = Line::from(vec![Span::from("superpacket top").bold(), Span::from(format!("  {}", printable(&screen.title)))]);
    match &screen.problem {
        Some(problem) => line.push_span(Span::styled(format!("  {}", printable(problem)), Style::new().fg(Color::Red))),
        None => {
            let (packets, bits) =
                screen.ports.iter().fold((0.0, 0.0), |(packets, bits), port| (packets + port.rx_packets, bits + port.rx_bits));
            line.push_span(format!("  {} ports  {} p/s  {} Gb/s", screen.ports.len(), number(packets), gigabits(bits)));
        }
    }
    line
}

fn draw_ports(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let header = std::iter::once(Cell::from("port")).chain(COLUMNS.iter().enumerate().map(|(index, (name, _))| match index {
        0 => Cell::from(*name),
        _ => right((*name).to_owned()),
    }));
    let rows = screen.ports.iter().map(|port| {
        let state = match port.state.as_str() {
            "up" => Style::new().fg(Color::Green),
            "down" => Style::new().fg(Color::Yellow),
            _ => Style::new().fg(Color::Red),
        };
        Row::new([
            Cell::from(printable(&port.port)),
            Cell::from(printable(&port.state)).style(state),
            right(number(port.rx_packets)),
            right(gigabits(port.rx_bits)),
            right(number(port.merged)),
            right(each(port.packets_per_aggregate)),
            right(number(port.tx_packets)),
            right(gigabits(port.tx_bits)),
            right(each(port.packets_per_super_packet)),
            right(number(port.segmented)),
        ])
    });
    let widths = std::iter::once(Constraint::Min(8)).chain(COLUMNS.iter().map(|(_, width)| Constraint::Length(*width)));
    let table = Table::new(rows, widths).header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD))).column_spacing(1);
    frame.render_stateful_widget(table, area, &mut screen.state);
}

/// The drops that there were, the most frequent first: port, cause, a second, in all.
fn drops(ports: &[PortRates]) -> Vec<(String, String, f64, u64)> {
    let mut all: Vec<_> = ports
        .iter()
        .flat_map(|port| port.drops.iter().map(|(cause, drops)| (port.port.clone(), cause.clone(), drops.rate, drops.total)))
        .filter(|(.., total)| *total > 0)
        .collect();
    all.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.3.cmp(&a.3)).then_with(|| (&a.0, &a.1).cmp(&(&b.0, &b.1))));
    all
}

fn draw_drops(frame: &mut Frame<'_>, area: Rect, drops: &[(String, String, f64, u64)]) {
    if drops.is_empty() {
        frame.render_widget(Line::from("no drops").dim(), area);
        return;
    }
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let rows = drops.iter().map(|(port, cause, rate, total)| {
        Row::new([Cell::from(printable(port)), Cell::from(printable(cause)), right(number(*rate)), right(number(*total as f64))])
    });
    let widths = [Constraint::Min(8), Constraint::Length(24), Constraint::Length(7), Constraint::Length(7)];
    let header = Row::new([Cell::from("port"), Cell::from("drops by cause"), right("a sec.".into()), right("in all".into())]);
    let header = header.style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
}

/// A number in at most five characters: `0`, `999`, `12.3k`, `1.23M`, `456G`.
fn number(value: f64) -> String {
    let (scaled, unit) = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        // What rounds up to 1000 of a unit is one of the next.
        .find(|(factor, _)| value >= factor * 0.9995)
        .map_or((value, ""), |(factor, unit)| (value / factor, unit));
    match (unit, scaled) {
        ("", _) => format!("{scaled:.0}"),
        (_, ..9.995) => format!("{scaled:.2}{unit}"),
        (_, ..99.95) => format!("{scaled:.1}{unit}"),
        _ => format!("{scaled:.0}{unit}"),
    }
}

/// Bits a second in Gb/s, in at most five characters.
fn gigabits(bits: f64) -> String {
    match bits / 1e9 {
        ..9.995 => format!("{:.2}", bits / 1e9),
        ..999.95 => format!("{:.1}", bits / 1e9),
        _ => format!("{:.0}", bits / 1e9),
    }
}

/// Packets in a super-packet; a dash if there was none.
fn each(packets: f64) -> String {
    if packets > 0.0 { format!("{packets:.1}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::Drops;
    use super::*;

    fn port(name: &str) -> PortRates {
        PortRates {
            port: name.into(),
            state: "up".into(),
            rx_packets: 812_345.0,
            rx_bits: 9.87e9,
            merged: 790_000.0,
            packets_per_aggregate: 36.4,
            tx_packets: 22_300.0,
            tx_bits: 12.345e9,
            packets_per_super_packet: 41.2,
            segmented: 3.0,
            drops: [("rx_ring".to_owned(), Drops { rate: 12.0, total: 3456 }), ("too_long".to_owned(), Drops::default())].into(),
        }
    }

    fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, screen)).expect("draws");
        let buffer = terminal.backend().buffer();
        (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn it_fits_80_columns_and_24_rows() {
        let mut screen = Screen { title: "/run/superpacket.sock".into(), ..Screen::default() };
        screen.show(vec![
            port("packet:eth0"),
            PortRates { port: "xdp:enp3s0f0?queue=0".into(), state: "gone".into(), ..PortRates::default() },
        ]);
        let lines = lines(&mut screen, 80, 24);
        assert_eq!(
            lines[..8],
            [
                "superpacket top  /run/superpacket.sock  2 ports  812k p/s  9.87 Gb/s",
                "port                   state rx p/s  Gb/s merged  each tx p/s  Gb/s  each  cut/s",
                "packet:eth0            up      812k  9.87   790k  36.4  22.3k  12.3  41.2      3",
                "xdp:enp3s0f0?queue=0   gone       0  0.00      0     -      0  0.00     -      0",
                "",
                "port                                    drops by cause            a sec.  in all",
                "packet:eth0                             rx_ring                       12   3.46k",
                "",
            ]
        );
        assert!(lines[22].starts_with("merged/s joined others") && lines[23] == "q quit   up/down scroll");
    }

    #[test]
    fn it_can_be_resized_to_anything() {
        let mut screen = Screen { title: "/run/s".into(), ..Screen::default() };
        screen.show((0..100).map(|number| port(&format!("packet:veth{number}"))).collect());
        for (width, height) in [(1, 1), (10, 3), (40, 10), (200, 60), (80, 24)] {
            lines(&mut screen, width, height);
        }
        screen.scroll(1000);
        assert!(lines(&mut screen, 80, 24)[2].starts_with("packet:veth99"), "the last can be reached");
        screen.scroll(-1000);
        assert!(lines(&mut screen, 80, 24)[2].starts_with("packet:veth0 "));
        screen.scroll(5);
        screen.show(vec![port("packet:only")]);
        assert!(lines(&mut screen, 80, 24)[2].starts_with("packet:only"), "fewer ports are there");
    }

    #[test]
    fn a_bridge_that_is_away_is_told_and_the_last_figures_stay() {
        let mut screen = Screen { title: "/run/s".into(), ..Screen::default() };
        screen.show(vec![port("packet:eth0")]);
        screen.problem = Some("nobody listens there any more\u{1b}[2J".into());
        let lines = lines(&mut screen, 80, 24);
        assert!(lines[0].contains("nobody listens there any more\\u{1b}[2J") && lines[2].starts_with("packet:eth0"), "{lines:?}");
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
        assert_eq!(["0.00", "10.0", "400.0", "1234"].map(str::to_owned), [0.0, 9.996e9, 4e11, 1.234e12].map(gigabits));
    }
}
