//! The charts on the page.

use super::sizes::Sizes;
use super::timeline::Timeline;
use crate::commands::present::{ColumnPairs, Steps};

/// Units of bytes, the largest first.
const UNITS: [(f64, &str); 4] = [(1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")];

/// Returns the chart of the bytes in frames of each length, before and after aggregation.
pub(super) fn sizes(before: &Sizes, after: &Sizes) -> ColumnPairs<'static> {
    let pairs = before.classes().zip(after.classes());
    let pairs: Vec<_> = pairs
        .map(|((name, before), (_, after))| (name.to_owned(), [before as f64, after as f64]))
        .collect();
    let most = pairs.iter().flat_map(|(_, values)| values).fold(0.0, |most: f64, &v| most.max(v));
    let (scale, unit) = UNITS.into_iter().find(|&(scale, _)| most >= scale).unwrap_or((1.0, " B"));
    ColumnPairs {
        title: "Bytes in frames of each length, before and after aggregation",
        axis: "bytes in a frame, at most",
        pairs: pairs.into_iter().map(|(name, values)| (name, values.map(|v| v / scale))).collect(),
        unit,
        line: None,
    }
}

/// Returns the chart of packets per second over time, before and after aggregation.
pub(super) fn timeline(timeline: &Timeline) -> Steps<'static> {
    Steps {
        title: "Packets per second over time, before and after aggregation",
        names: ["packets per second before", "packets per second after"],
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
        [60, 1514, 65_000].into_iter().for_each(|length| lengths.weigh(length, length as u64));
        let mut line = Timeline::default();
        for step in 0..1000 {
            line.before(step * 10_000);
            line.after(step * 10_000);
        }
        let drawn = [WIDE, NARROW]
            .map(|width| [sizes(&lengths, &lengths).draw(width), timeline(&line).draw(width)]);
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
            let svg = svg.expect("drawn");
            // The second panel has the same labels as the first.
            let (first, _) = svg.split_once("packets per second after").unwrap_or((&svg, ""));
            let (first, _) = first.rsplit_once("</text>").expect("texts");
            let texts = texts(&format!("{first}</text>"));
            // Labels of the vertical axis all end at the same place.
            let axis = texts
                .iter()
                .filter(|(words, ..)| words == "0" || words == "0.0 B")
                .map(|text| text.2)
                .fold(f64::MAX, f64::min);
            let labels: Vec<_> = texts
                .iter()
                .filter(|text| (text.2 - axis).abs() < 0.01)
                .map(|text| &text.0)
                .collect();
            let different: std::collections::BTreeSet<_> = labels.iter().collect();
            assert!(labels.len() > 2 && labels.len() == different.len(), "{labels:?} of {texts:?}");
        }
    }

    #[test]
    fn a_few_large_packets_weigh_more_than_many_small_ones() {
        // 1,000 small frames stay; 3,000 frames of 1,500 bytes become 70 of 64 KB.
        let [before, after]: [Sizes; 2] =
            [r#"{"64": 60000, "1518": 4500000}"#, r#"{"64": 60000, "64k": 4400000}"#]
                .map(|text| serde_json::from_str(text).expect("bytes"));
        let svg = sizes(&before, &after).draw(WIDE).expect("drawn");
        let labels: Vec<_> = texts(&svg).into_iter().map(|(words, ..)| words).collect();
        assert!(labels.iter().any(|label| label == "4.0 MB"), "{labels:?}");
        let highest = |side: &str| {
            let bars = svg.split("<rect ").filter(|part| part.contains(&format!("var(--{side})")));
            let heights = bars.map(|bar| {
                let (_, rest) = bar.split_once(" height=\"").expect("a height");
                rest.split_once('"').expect("its end").0.parse::<u32>().expect("a number")
            });
            heights.max().expect("bars")
        };
        let (before, after) = (highest("before"), highest("after"));
        assert!(after < before && after * 10 > before * 9, "{before} {after}");
    }

    #[test]
    fn both_panels_have_the_same_axis() {
        let mut line = Timeline::default();
        for step in 0..4000 {
            line.before(step * 1_000_000);
            if step % 40 == 0 {
                line.after(step * 1_000_000);
            }
        }
        let svg = timeline(&line).draw(WIDE).expect("drawn");
        let texts = texts(&svg);
        let count = |label: &str| texts.iter().filter(|(words, ..)| words == label).count();
        assert_eq!((count("1,000"), count("s since the first packet")), (2, 2), "{texts:?}");
        assert_eq!((count("packets per second before"), count("packets per second after")), (1, 1));
    }

    #[test]
    fn no_number_is_cut_off() {
        let lengths: Sizes =
            serde_json::from_str(r#"{"64": 3000000000, "1518": 7}"#).expect("counts");
        for width in [WIDE, NARROW] {
            let mut drawn = vec![sizes(&lengths, &lengths).draw(width)];
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
        }
    }
}
