//! The charts on the page.

use super::sizes::Sizes;
use super::timeline::Timeline;
use crate::commands::present::{Bar, BarRow, BarValue, Bars, ColumnPairs, Steps, grouped, percent};
use crate::commands::totals::Totals;

/// Maximum reasons in the chart.
const MOST_REASONS: usize = 12;

/// The numbers of frames by length, before and after aggregation.
pub(super) fn sizes(before: &Sizes, after: &Sizes) -> ColumnPairs<'static> {
    let pairs = before.classes().zip(after.classes());
    ColumnPairs {
        title: "Frames by length, before and after aggregation",
        axis: "bytes in a frame, at most",
        pairs: pairs
            .map(|((name, before), (_, after))| (name.to_owned(), [before as f64, after as f64]))
            .collect(),
        unit: "",
        line: None,
    }
}

/// The most frequent reasons.
pub(super) fn reasons(totals: &Totals) -> Bars {
    let mut sorted: Vec<_> = totals.reasons.iter().map(|(name, &count)| (*name, count)).collect();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    sorted.truncate(MOST_REASONS);
    let all: u64 = totals.reasons.values().sum();
    let row = |(name, count): (&str, u64)| {
        let text = format!("{}  ({})", grouped(count), percent(count, all));
        let value = BarValue { value: count as f64, spread: [count as f64; 2], text };
        BarRow::Bar(Bar { name: name.replace('_', " "), values: [Some(value), None] })
    };
    Bars {
        title: "Why packets left as they did".to_owned(),
        rows: sorted.into_iter().map(row).collect(),
        ..Bars::default()
    }
}

/// Packets per second, before and after aggregation.
pub(super) fn timeline(timeline: &Timeline) -> Steps<'static> {
    Steps {
        title: "Packets per second over time, before and after aggregation",
        since: "the first packet",
        seconds: timeline.seconds(),
        points: timeline.rates().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::present::Chart;
    use crate::commands::present::{NARROW, WIDE};

    #[test]
    fn plots_have_no_colours_of_their_own() {
        let mut lengths = Sizes::default();
        [60, 1514, 65_000].into_iter().for_each(|length| lengths.count(length));
        let mut line = Timeline::default();
        for step in 0..1000 {
            line.before(step * 10_000);
            line.after(step * 10_000);
        }
        let mut totals = Totals::default();
        totals.reason("push");
        let drawn = [WIDE, NARROW].map(|width| {
            [
                sizes(&lengths, &lengths).draw(width),
                reasons(&totals).draw(width),
                timeline(&line).draw(width),
            ]
        });
        for svg in drawn.into_iter().flatten() {
            let svg = svg.expect("drawn");
            assert!(
                svg.starts_with("<svg role=\"img\" aria-label=")
                    && svg.trim_end().ends_with("</svg>")
            );
            assert!(svg.contains("var(--after)"));
            assert!(!svg.contains("=\"#"), "{svg}");
        }
    }

    /// Returns the start and the end of each text in a plot, by the width of Helvetica's digits.
    fn texts(svg: &str) -> Vec<(String, f64, f64)> {
        let attribute = |tag: &str, name: &str| {
            let (_, rest) = tag.split_once(&format!(" {name}=\"")).expect("the attribute");
            rest.split_once('"').expect("its end").0.to_owned()
        };
        let text = |part: &str| {
            let (tag, rest) = part.split_once('>').expect("a tag");
            let words = rest.split_once("</text>").expect("its end").0.trim().to_owned();
            let narrow = words
                .chars()
                .filter(|letter| matches!(letter, ',' | '.' | ' ' | '(' | ')'))
                .count();
            let size: f64 = attribute(tag, "font-size").parse().expect("a size");
            let long =
                size * (0.556 * (words.chars().count() - narrow) as f64 + 0.278 * narrow as f64);
            let x: f64 = attribute(tag, "x").parse().expect("a place");
            let start = match attribute(tag, "text-anchor").as_str() {
                "start" => x,
                "middle" => x - long / 2.0,
                _ => x - long,
            };
            (words, start, start + long)
        };
        svg.split("<text").skip(1).map(text).collect()
    }

    #[test]
    fn labels_of_few_packets_differ() {
        let lengths: Sizes = serde_json::from_str(r#"{"64": 2}"#).expect("counts");
        let mut slow = Timeline::default();
        for time in 0..5 {
            slow.before(time * 1_000_000_000);
            slow.after(time * 1_000_000_000);
        }
        for svg in [sizes(&lengths, &lengths).draw(WIDE), timeline(&slow).draw(WIDE)] {
            let texts = texts(&svg.expect("drawn"));
            // Labels of the vertical axis all end at the same place.
            let axis = texts
                .iter()
                .filter(|(words, ..)| words == "0")
                .map(|text| text.2)
                .fold(f64::MAX, f64::min);
            let labels: Vec<_> = texts
                .iter()
                .filter(|text| (text.2 - axis).abs() < 0.01)
                .map(|text| &text.0)
                .collect();
            let different: std::collections::BTreeSet<_> = labels.iter().collect();
            assert!(labels.len() > 2 && labels.len() == different.len(), "{labels:?}");
        }
    }

    #[test]
    fn frames_by_length_are_counts_before_and_after() {
        // After aggregation, the share of small frames grows but their number is the same.
        let [before, after]: [Sizes; 2] =
            [r#"{"64": 1000, "1518": 3000}"#, r#"{"64": 1000, "64k": 70}"#]
                .map(|text| serde_json::from_str(text).expect("counts"));
        let svg = sizes(&before, &after).draw(WIDE).expect("drawn");
        // The name of the axis below comes first.
        let axis: Vec<_> = texts(&svg)
            .into_iter()
            .skip(1)
            .map(|(words, ..)| words)
            .take_while(|words| words != "64")
            .collect();
        assert_eq!(axis, ["0", "1,000", "2,000", "3,000"]);
        let heights = |side: &str| -> Vec<u32> {
            let bars = svg.split("<rect ").filter(|part| part.contains(&format!("var(--{side})")));
            let heights = bars.map(|bar| {
                bar.split_once(" height=\"")
                    .and_then(|(_, rest)| rest.split_once('"'))
                    .expect("a height")
                    .0
            });
            heights.map(|height| height.parse().expect("a number")).collect()
        };
        let (before, after) = (heights("before"), heights("after"));
        let most = before.iter().copied().max().expect("bars");
        assert!(
            before[0] == after[0] && before[0].abs_diff(most / 3) <= 1,
            "1,000 of each: {before:?} {after:?}"
        );
        assert!(
            after.iter().skip(1).all(|&height| height <= most / 40),
            "70 of 3,000: {before:?} {after:?}"
        );
    }

    #[test]
    fn no_number_is_cut_off() {
        let lengths: Sizes =
            serde_json::from_str(r#"{"64": 3000000000, "1518": 7}"#).expect("counts");
        let mut totals = Totals::default();
        totals.reasons.insert("push", 2_123_456_789);
        for width in [WIDE, NARROW] {
            let mut drawn =
                vec![sizes(&lengths, &lengths).draw(width), reasons(&totals).draw(width)];
            // A label at the very end of the axis, and a high rate.
            for (step, steps) in
                [(1_000_000_000, 600), (1_000_000_000, 604_800), (100, 1000), (1, 100)]
            {
                let mut line = Timeline::default();
                for time in 0..steps {
                    line.before(time * step);
                    line.after(time * step);
                }
                drawn.push(timeline(&line).draw(width));
            }
            for svg in drawn {
                let texts = texts(&svg.expect("drawn"));
                assert!(texts.len() >= 2);
                for (words, start, end) in texts {
                    assert!(
                        start >= 0.0 && end <= f64::from(width),
                        "{words}, from {start} to {end} in {width}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_empty_capture_is_drawn() {
        for width in [WIDE, NARROW] {
            assert!(sizes(&Sizes::default(), &Sizes::default()).draw(width).is_ok());
            assert!(reasons(&Totals::default()).draw(width).is_ok());
        }
    }
}
