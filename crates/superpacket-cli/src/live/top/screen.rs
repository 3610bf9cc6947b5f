//! Draws the screen of `superpacket top`.

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};

use superpacket_captures::is_never_held;

use super::history::History;
use super::rates::{CounterRate, PortRates};
use crate::report::printable;

/// What the screen of `superpacket top` shows.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// Path of the bridge's control socket.
    pub(super) title: String,
    /// The error to show if the rates could not be updated; otherwise `None`.
    pub(super) problem: Option<String>,
    ports: Vec<PortRates>,
    /// For each port, the bits per second received and sent in the last minute.
    history: BTreeMap<String, [History; 2]>,
    interval: Duration,
    state: TableState,
}

impl Screen {
    /// Creates a screen without ports, which is updated once per `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        Screen { interval, ..Screen::default() }
    }

    /// Replaces the ports whose rates are shown.
    pub(super) fn show(&mut self, ports: Vec<PortRates>) {
        self.history.retain(|name, _| ports.iter().any(|port| port.port == *name));
        self.ports = ports;
        self.scroll(0);
    }

    /// Adds the current rates to the values of the last minute.
    pub(super) fn record(&mut self) {
        for port in &self.ports {
            let history = self
                .history
                .entry(port.port.clone())
                .or_insert_with(|| [(); 2].map(|()| History::new(self.interval)));
            for (history, bits) in history.iter_mut().zip([port.rx_bits, port.tx_bits]) {
                history.push(Some(bits));
            }
        }
    }

    /// Adds an interval without data to the values of the last minute.
    pub(super) fn record_nothing(&mut self) {
        self.history.values_mut().flatten().for_each(|history| history.push(None));
    }

    /// Scrolls the list of ports by `by` rows.
    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.ports.len().saturating_sub(1);
        *self.state.offset_mut() = self.state.offset().saturating_add_signed(by).min(last);
    }

    /// Returns the width of the column with the ports' names: that of the longest name, if a screen
    /// of `columns` columns has room for it.
    fn name_width(&self, columns: u16) -> u16 {
        let others: u16 = COLUMNS.iter().map(|(.., width)| width + 1).sum();
        let longest = self
            .ports
            .iter()
            .map(|port| printable(&port.port).chars().count())
            .max()
            .unwrap_or_default();
        (longest.max(4) as u16).min(columns.saturating_sub(others).max(8))
    }
}

/// The columns after the ports' names: both lines of the heading, and the width. On a screen of 80
/// columns they leave 26 for the names.
const COLUMNS: [(&str, &str, u16); 9] = [
    ("", "state", 5),
    ("rx", "p/s", 5),
    ("rx", "b/s", 5),
    ("rx", "merged", 6),
    ("rx", "each", 5),
    ("tx", "p/s", 5),
    ("tx", "b/s", 5),
    ("tx", "each", 5),
    ("tx", "cut/s", 5),
];

/// Bits per second below which a direction is idle.
const IDLE_BITS: f64 = 10_000.0;

/// Number of screen columns from which the lists of counters are placed side by side.
const WIDE: u16 = 120;

/// Draws the whole screen: the rates of the ports, the last minute of each, and lists of counters
/// by reason.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let mut rest = frame.area();
    let names = screen.name_width(rest.width);
    frame.render_widget(heading(screen), take(&mut rest, 1));
    let [middle, legend] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(2)]).areas(rest);
    let mut rest = middle;
    let rows = (screen.ports.len() as u16).saturating_add(2);
    draw_ports(frame, take(&mut rest, rows.min(frame.area().height * 2 / 3)), screen, names);
    take(&mut rest, 1);
    let lists = lists(&screen.ports, names);
    let places = places(&mut rest, &lists);
    draw_histories(frame, rest, screen);
    for (list, place) in lists.into_iter().zip(places) {
        draw_list(frame, place, list);
    }
    let keys = [
        "each: frames in a super-packet; merged/s joined others; cut/s were segmented",
        "bars: bits in the last minute, up to the most in it   q quit   up/down scroll",
    ];
    frame.render_widget(Paragraph::new(keys.map(|line| Line::from(line).dim()).to_vec()), legend);
}

/// Removes up to `rows` rows from the top of an area, and returns them.
fn take(area: &mut Rect, rows: u16) -> Rect {
    let taken = Rect { height: rows.min(area.height), ..*area };
    (area.y, area.height) = (area.y + taken.height, area.height - taken.height);
    taken
}

fn heading(screen: &Screen) -> Line<'static> {
    let mut line = Line::from(vec![
        Span::from("superpacket top").bold(),
        Span::from(format!("  {}", printable(&screen.title))),
    ]);
    match &screen.problem {
        Some(problem) => line.push_span(Span::styled(
            format!("  {}", printable(problem)),
            Style::new().fg(Color::Red),
        )),
        None => {
            let (packets, bits) = screen.ports.iter().fold((0.0, 0.0), |(packets, bits), port| {
                (packets + port.rx_packets, bits + port.rx_bits)
            });
            line.push_span(format!(
                "  {} ports  {} p/s  {}",
                screen.ports.len(),
                number(packets),
                bit_rate(bits)
            ));
        }
    }
    line
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}

fn draw_ports(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen, names: u16) {
    let port = std::iter::once(Cell::from("\nport"));
    let header = port.chain(COLUMNS.iter().enumerate().map(|(index, (way, name, _))| {
        let lines = Text::from(vec![Line::from(*way), Line::from(*name)]);
        Cell::from(if index == 0 { lines } else { lines.right_aligned() })
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
            right(number(port.rx_bits)),
            right(number(port.merged)),
            right(each(port.packets_per_rx_super_packet)),
            right(number(port.tx_packets)),
            right(number(port.tx_bits)),
            right(each(port.packets_per_super_packet)),
            right(number(port.segmented)),
        ])
    });
    let widths = std::iter::once(names)
        .chain(COLUMNS.iter().map(|(.., width)| *width))
        .map(Constraint::Length);
    let table = Table::new(rows, widths)
        .header(Row::new(header).height(2).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(1);
    frame.render_stateful_widget(table, area, &mut screen.state);
}

/// The traffic of a port in one direction (rx or tx): its colour, the current bits per second, and
/// those of the last minute.
struct Direction<'a> {
    name: &'static str,
    colour: Color,
    bits: f64,
    history: Option<&'a History>,
}

impl Direction<'_> {
    fn maximum(&self) -> f64 {
        self.history.map_or(self.bits, History::maximum)
    }

    fn draw(&self, frame: &mut Frame<'_>, heading: Rect, place: Rect) {
        let most = self.maximum();
        let text = format!("{} {}, most {}", self.name, bit_rate(self.bits), bit_rate(most));
        frame.render_widget(Line::from(text), heading);
        if let Some(history) = self.history {
            let bars = Sparkline::default()
                .data(history.cells(usize::from(place.width)))
                .max(most.max(1.0) as u64);
            frame.render_widget(bars.style(Style::new().fg(self.colour)), place);
        }
    }
}

/// Returns the directions of a port in two lists: those that are drawn with bars, and those that
/// were idle in the last minute. A direction with very little traffic, such as neighbour discovery,
/// counts as idle.
fn directions<'a>(
    screen: &'a Screen,
    port: &PortRates,
) -> (Vec<Direction<'a>>, Vec<Direction<'a>>) {
    let history = screen.history.get(&port.port);
    let ways = [("rx", Color::Cyan, port.rx_bits), ("tx", Color::Magenta, port.tx_bits)];
    let ways = ways.into_iter().enumerate().map(|(way, (name, colour, bits))| Direction {
        name,
        colour,
        bits,
        history: history.map(|history| &history[way]),
    });
    let ways: Vec<_> = ways.collect();
    let most = ways.iter().map(Direction::maximum).fold(0.0, f64::max);
    ways.into_iter().partition(|way| way.maximum() >= (most / 1000.0).max(IDLE_BITS))
}

/// Draws the last minute's traffic of as many ports as fit in the area, from the first visible row
/// of the port list on. Each port has a heading with its offloads, and bars unless it is idle.
fn draw_histories(frame: &mut Frame<'_>, mut area: Rect, screen: &Screen) {
    let ports = screen.ports.iter().skip(screen.state.offset());
    let mut shown: Vec<_> = ports.map(|port| (port, directions(screen, port))).collect();
    // A port needs a row for its heading, and two more if it is busy.
    let mut needed = 0;
    shown.retain(|(_, (busy, _))| {
        needed += if busy.is_empty() { 1 } else { 3 };
        needed <= area.height
    });
    let busy_ports = shown.iter().filter(|(_, (busy, _))| !busy.is_empty()).count() as u16;
    let free = area.height.saturating_sub(shown.len() as u16);
    let each = free / busy_ports.max(1);
    for (port, (busy, idle)) in shown {
        let mut line = Line::from(Span::from(printable(&port.port)).bold());
        line.extend(idle.iter().map(|way| {
            let rate = if way.bits > 0.0 { bit_rate(way.bits) } else { "idle".into() };
            Span::from(format!("  {} {rate}", way.name)).dim()
        }));
        let on = if port.offloads.is_empty() { "none".into() } else { port.offloads.join(" ") };
        line.push_span(Span::from(format!("  on: {}", printable(&on))));
        frame.render_widget(line, take(&mut area, 1));
        if busy.is_empty() {
            continue;
        }
        // There is an empty row after the bars of each port, unless the area is too small.
        let [headings, places] = [1, each.saturating_sub(2).max(1)].map(|rows| {
            let halves = vec![Constraint::Fill(1); busy.len()];
            Layout::horizontal(halves).spacing(2).split(take(&mut area, rows))
        });
        for (way, (heading, place)) in busy.iter().zip(headings.iter().zip(places.iter())) {
            way.draw(frame, *heading, *place);
        }
        take(&mut area, u16::from(each > 2));
    }
}

/// A list of counters by reason, for all ports.
struct CounterList {
    header: Vec<Cell<'static>>,
    rows: Vec<Row<'static>>,
    widths: Vec<u16>,
    /// Text shown instead of an empty list.
    empty_text: &'static str,
}

impl CounterList {
    fn height(&self) -> u16 {
        1 + self.rows.len().min(usize::from(u16::MAX - 1)) as u16
    }
}

/// Returns the lists to show: dropped packets by reason, the counters of LRO if any port uses it,
/// and the packets that left aggregation by reason.
fn lists(ports: &[PortRates], names: u16) -> Vec<CounterList> {
    let by_cause =
        |what: &'static str,
         empty_text: &'static str,
         read: fn(&PortRates) -> &BTreeMap<String, CounterRate>| CounterList {
            header: vec![Cell::from("port"), Cell::from(what), right("per s"), right("total")],
            rows: most_frequent(ports, read)
                .into_iter()
                .map(|(port, cause, counted)| {
                    let colour = if is_never_held(cause) { Color::Yellow } else { Color::Reset };
                    let cause = Cell::from(printable(cause)).style(Style::new().fg(colour));
                    let cells = [Cell::from(printable(port)), cause];
                    Row::new(cells.into_iter().chain(
                        [counted.rate, counted.total as f64].map(|count| right(number(count))),
                    ))
                })
                .collect(),
            widths: vec![names, 22, 6, 6],
            empty_text,
        };
    let mut lists = vec![by_cause("drops by cause", "no drops", |port| &port.drops)];
    let with_lro = ports.iter().filter(|port| port.lro.values().any(|counted| counted.total > 0));
    let lro: Vec<_> = with_lro
        .map(|port| {
            let rates = ["aggregated", "flushed", "no_desc"]
                .map(|name| port.lro.get(name).copied().unwrap_or_default());
            let rates = rates.into_iter().flat_map(|counted| [counted.rate, counted.total as f64]);
            Row::new(
                std::iter::once(Cell::from(printable(&port.port)))
                    .chain(rates.map(|count| right(number(count)))),
            )
        })
        .collect();
    if !lro.is_empty() {
        let names_of = ["LRO port", "aggr./s", "total", "flush/s", "total", "no_desc/s", "total"];
        let header = names_of
            .into_iter()
            .enumerate()
            .map(|(index, name)| if index == 0 { Cell::from(name) } else { right(name) });
        lists.push(CounterList {
            header: header.collect(),
            rows: lro,
            widths: vec![names.max(8), 7, 6, 7, 6, 9, 6],
            empty_text: "",
        });
    }
    let none = "nothing left aggregation";
    lists.push(by_cause("reason, single first", none, |port| &port.reasons));
    lists
}

/// Returns all counters that are not zero, with port and reason, in the order to show them:
/// increasing counters first; among equals, the reasons for which packets are never held; then by
/// rate and total.
fn most_frequent(
    ports: &[PortRates],
    read: fn(&PortRates) -> &BTreeMap<String, CounterRate>,
) -> Vec<(&str, &str, CounterRate)> {
    let each = ports.iter().flat_map(|port| {
        read(port).iter().map(|(cause, counted)| (port.port.as_str(), cause.as_str(), *counted))
    });
    let mut all: Vec<_> = each.filter(|(.., counted)| counted.total > 0).collect();
    let rank = |(_, cause, counted): &(&str, &str, CounterRate)| {
        (counted.rate > 0.0, is_never_held(cause))
    };
    all.sort_by(|a, b| {
        (rank(b).cmp(&rank(a)))
            .then(b.2.rate.total_cmp(&a.2.rate))
            .then(b.2.total.cmp(&a.2.total))
            .then_with(|| (a.0, a.1).cmp(&(b.0, b.1)))
    });
    all
}

/// Reserves at most the lower half of `area` for the lists, and returns an area for each. On a wide
/// screen the lists are side by side.
fn places(area: &mut Rect, lists: &[CounterList]) -> Vec<Rect> {
    let budget = area.height / 2;
    let heights: Vec<u16> = if area.width >= WIDE {
        let height = lists.iter().map(CounterList::height).max().unwrap_or_default().min(budget);
        vec![height; lists.len()]
    } else {
        let mut left = budget;
        let shares = lists.iter().enumerate().map(|(index, list)| {
            // There is an empty row between lists.
            let behind = (lists.len() - index - 1) as u16;
            let height =
                list.height().min((left.saturating_sub(behind) / (behind + 1)).max(1)).min(left);
            left = left.saturating_sub(height + 1);
            height
        });
        shares.collect()
    };
    let side_by_side = area.width >= WIDE;
    let whole = match side_by_side {
        true => heights.first().copied().unwrap_or_default(),
        false => {
            heights.iter().sum::<u16>()
                + heights.iter().filter(|height| **height > 0).count().saturating_sub(1) as u16
        }
    };
    let upper = take(area, area.height.saturating_sub(whole + 1));
    take(area, 1);
    let mut lower = std::mem::replace(area, upper);
    if side_by_side {
        let halves = vec![Constraint::Fill(1); lists.len()];
        return Layout::horizontal(halves).spacing(3).split(lower).to_vec();
    }
    let each = heights.into_iter().map(|height| {
        let place = take(&mut lower, height);
        take(&mut lower, 1);
        place
    });
    each.collect()
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, list: CounterList) {
    if list.rows.is_empty() {
        frame.render_widget(Line::from(list.empty_text).dim(), area);
        return;
    }
    let header = Row::new(list.header).style(Style::new().add_modifier(Modifier::BOLD));
    let widths = list.widths.into_iter().map(Constraint::Length);
    frame.render_widget(Table::new(list.rows, widths).header(header).column_spacing(1), area);
}

/// Formats a number in at most five characters: `0`, `999`, `12.3k`, `1.23M`, `456G`.
fn number(value: f64) -> String {
    let (scaled, unit) = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        // A value that rounds up to 1000 of a unit is shown with the next unit.
        .find(|(factor, _)| value >= factor * 0.9995)
        .map_or((value, ""), |(factor, unit)| (value / factor, unit));
    match (unit, scaled) {
        ("", _) => format!("{scaled:.0}"),
        (_, ..9.995) => format!("{scaled:.2}{unit}"),
        (_, ..99.95) => format!("{scaled:.1}{unit}"),
        _ => format!("{scaled:.0}{unit}"),
    }
}

/// Formats bits per second with their unit: `9.87 Gb/s`, `45.6 kb/s`.
fn bit_rate(bits: f64) -> String {
    let text = number(bits);
    let digits = text.trim_end_matches(char::is_alphabetic);
    format!("{digits} {}b/s", &text[digits.len()..])
}

/// Formats a number of packets per super-packet, with a dash if there was no super-packet.
fn each(packets: f64) -> String {
    if packets > 0.0 { format!("{packets:.1}") } else { "-".into() }
}

#[cfg(test)]
mod tests;
