//! Draws the screen of `superpacket top`.

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};

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
        let others: u16 = COLUMNS.iter().map(|(_, width)| width + 1).sum();
        let longest = self
            .ports
            .iter()
            .map(|port| printable(&port.port).chars().count())
            .max()
            .unwrap_or_default();
        (longest.max(4) as u16).min(columns.saturating_sub(others).max(8))
    }
}

/// The columns after the ports' names, each with its width. On a screen of 80 columns they leave 22
/// for the names.
const COLUMNS: [(&str, u16); 9] = [
    ("state", 5),
    ("rx p/s", 6),
    ("Gb/s", 5),
    ("merged", 6),
    ("each", 5),
    ("tx p/s", 6),
    ("Gb/s", 5),
    ("each", 5),
    ("cut/s", 6),
];

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
    let rows = (screen.ports.len() as u16).saturating_add(1);
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
        "bars: Gb/s in the last minute, up to the most in it   q quit   up/down scroll",
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
                "  {} ports  {} p/s  {} Gb/s",
                screen.ports.len(),
                number(packets),
                gigabits(bits)
            ));
        }
    }
    line
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}

fn draw_ports(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen, names: u16) {
    let header = std::iter::once(Cell::from("port")).chain(COLUMNS.iter().enumerate().map(
        |(index, (name, _))| match index {
            0 => Cell::from(*name),
            _ => right(*name),
        },
    ));
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
            right(each(port.packets_per_rx_super_packet)),
            right(number(port.tx_packets)),
            right(gigabits(port.tx_bits)),
            right(each(port.packets_per_super_packet)),
            right(number(port.segmented)),
        ])
    });
    let widths = std::iter::once(names)
        .chain(COLUMNS.iter().map(|(_, width)| *width))
        .map(Constraint::Length);
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(1);
    frame.render_stateful_widget(table, area, &mut screen.state);
}

/// Draws the last minute of the ports, from the first one shown on, as many as the area has room
/// for.
fn draw_histories(frame: &mut Frame<'_>, mut area: Rect, screen: &Screen) {
    let ports: Vec<_> = screen.ports.iter().skip(screen.state.offset()).collect();
    let shown = ports.len().min(usize::from(area.height / 2));
    if shown == 0 {
        return;
    }
    let each = area.height / shown as u16;
    // There is an empty row after the bars of each port, unless the area is too small.
    let bars = each.saturating_sub(2).max(1);
    for port in ports.into_iter().take(shown) {
        let [heading, place] = [take(&mut area, 1), take(&mut area, bars)];
        take(&mut area, u16::from(each > 2));
        let halves = |area: Rect| {
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
                .spacing(2)
                .areas::<2>(area)
        };
        let (headings, places) = (halves(heading), halves(place));
        for (way, bits) in [port.rx_bits, port.tx_bits].into_iter().enumerate() {
            let (name, colour) = [("rx", Color::Cyan), ("tx", Color::Magenta)][way];
            let history = screen.history.get(&port.port).map(|history| &history[way]);
            let most = history.map_or(bits, History::maximum);
            let text = format!("{name} {}, most {}", gigabits(bits), gigabits(most));
            let room = usize::from(headings[way].width).saturating_sub(text.len() + 1);
            let mut port: String = if way == 0 {
                printable(&port.port).chars().take(room).collect()
            } else {
                String::new()
            };
            if !port.is_empty() {
                port.push(' ');
            }
            frame.render_widget(
                Line::from(vec![Span::from(port).bold(), Span::from(text)]),
                headings[way],
            );
            if let Some(history) = history {
                let bars = Sparkline::default()
                    .data(history.cells(usize::from(places[way].width)))
                    .max(most.max(1.0) as u64);
                frame.render_widget(bars.style(Style::new().fg(colour)), places[way]);
            }
        }
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
            header: vec![Cell::from("port"), Cell::from(what), right("a sec."), right("in all")],
            rows: most_frequent(ports, read)
                .into_iter()
                .map(|(port, cause, counted)| {
                    let cells = [Cell::from(printable(port)), Cell::from(printable(cause))];
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
        let names_of =
            ["LRO port", "aggr./s", "in all", "flush/s", "in all", "no_desc/s", "in all"];
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
    lists.push(by_cause("reason to leave", "nothing left aggregation", |port| &port.reasons));
    lists
}

/// Returns all counters that are not zero, for each port and reason, the most frequent first.
fn most_frequent(
    ports: &[PortRates],
    read: fn(&PortRates) -> &BTreeMap<String, CounterRate>,
) -> Vec<(&str, &str, CounterRate)> {
    let each = ports.iter().flat_map(|port| {
        read(port).iter().map(|(cause, counted)| (port.port.as_str(), cause.as_str(), *counted))
    });
    let mut all: Vec<_> = each.filter(|(.., counted)| counted.total > 0).collect();
    all.sort_by(|a, b| {
        b.2.rate
            .total_cmp(&a.2.rate)
            .then(b.2.total.cmp(&a.2.total))
            .then_with(|| (a.0, a.1).cmp(&(b.0, b.1)))
    });
    all
}

/// Takes room for the lists from the bottom of `area`, at most half of it. Returns an area for
/// each; on a wide screen they are side by side.
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

/// Formats bits per second as gigabits per second, in at most five characters.
fn gigabits(bits: f64) -> String {
    match bits / 1e9 {
        ..9.995 => format!("{:.2}", bits / 1e9),
        ..999.95 => format!("{:.1}", bits / 1e9),
        _ => format!("{:.0}", bits / 1e9),
    }
}

/// Formats a number of packets per super-packet, with a dash if there was no super-packet.
fn each(packets: f64) -> String {
    if packets > 0.0 { format!("{packets:.1}") } else { "-".into() }
}

#[cfg(test)]
mod tests;
