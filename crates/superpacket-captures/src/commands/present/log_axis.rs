//! The scale of a logarithmic axis.

use super::number::shortest;

/// A logarithmic axis between two horizontal positions of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogAxis {
    /// Values at both ends of the axis.
    values: [f64; 2],
    /// Horizontal positions of both ends, in pixels.
    places: [i32; 2],
}

/// Leading digits of the values that get a label within each power of ten, from the most labels to
/// the fewest.
const DIGITS: [&[f64]; 4] =
    [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];

impl LogAxis {
    /// Returns an axis between the positions `places` that shows all given values. Values that are
    /// not positive have no position on it.
    pub(super) fn new(values: impl Iterator<Item = f64>, places: [i32; 2]) -> Self {
        let positive = values.filter(|value| *value > 0.0 && value.is_finite());
        let (low, high) = positive
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        // The marks at the ends keep a distance from them, and a single value is in the middle.
        let margin = (high / low).powf(0.03).max(1.05);
        Self { values: [low / margin, high * margin], places }
    }

    /// Returns the horizontal position of a value. A value outside the axis gets the position of
    /// its nearer end.
    pub(super) fn at(&self, value: f64) -> i32 {
        let ([low, high], [left, right]) = (self.values, self.places);
        let part = (value.clamp(low, high) / low).ln() / (high / low).ln();
        left + (f64::from(right - left) * part).round() as i32
    }

    /// Returns the values at which labels are drawn: as many as fit, if each needs `room` pixels.
    pub(super) fn ticks(&self, room: u32) -> Vec<f64> {
        let [low, high] = self.values;
        let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let of = |digits: &[f64]| -> Vec<f64> {
            let all = exponents
                .clone()
                .flat_map(|exponent| digits.iter().map(move |digit| (digit, exponent)));
            // Division gives 0.3, where multiplying by 0.1 gives 0.30000000000000004.
            let values = all.map(|(digit, exponent)| match exponent {
                0.. => digit * 10f64.powi(exponent),
                _ => digit / 10f64.powi(-exponent),
            });
            values.filter(|value| (low..=high).contains(value)).collect()
        };
        let fit = |ticks: &Vec<f64>| {
            ticks.windows(2).all(|pair| self.at(pair[0]).abs_diff(self.at(pair[1])) >= room)
        };
        DIGITS.into_iter().map(of).find(fit).unwrap_or_default()
    }

    /// Formats a value as a label of the axis.
    pub(super) fn label(value: f64) -> String {
        match value {
            1e6.. => format!("{}M", shortest(value / 1e6, 1)),
            1e4.. => format!("{}k", shortest(value / 1e3, 1)),
            _ => shortest(value, 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance() {
        let axis = LogAxis::new([0.5, 8.0].into_iter(), [0, 400]);
        assert_eq!(axis.ticks(50), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(axis.ticks(20), [0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]);
        let axis = LogAxis::new([10.0, 1e6].into_iter(), [0, 300]);
        assert_eq!(axis.ticks(50), [10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.05, 1.0, 1.5, 5000.0, 20_000.0, 3e6].map(LogAxis::label);
        assert_eq!(labels, ["0.05", "1", "1.5", "5,000", "20k", "3M"]);
    }

    #[test]
    fn a_single_value_is_in_the_middle_and_none_is_no_error() {
        assert_eq!(LogAxis::new([3.0].into_iter(), [0, 100]).at(3.0), 50);
        assert_eq!(LogAxis::new([f64::NAN, 0.0].into_iter(), [0, 100]).at(1.0), 50);
    }
}
