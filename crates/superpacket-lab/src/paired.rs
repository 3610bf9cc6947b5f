//! Comparison of two variants on a noisy machine: they are measured alternately, and compared
//! within each round.

use std::fmt;

/// Measures variants alternately for `rounds` rounds, and returns one figure per round for each.
/// Every second round runs in reverse order, so that drift (heat, other load) affects all alike.
///
/// # Errors
///
/// The first error of a measurement.
pub fn interleaved<E>(
    rounds: usize,
    variants: &mut [&mut dyn FnMut() -> Result<f64, E>],
) -> Result<Vec<Vec<f64>>, E> {
    let count = variants.len();
    let mut figures = vec![Vec::with_capacity(rounds); count];
    for round in 0..rounds {
        for turn in 0..count {
            let variant = if round % 2 == 0 { turn } else { count - 1 - turn };
            figures[variant].push(variants[variant]()?);
        }
    }
    Ok(figures)
}

/// Measures `a` and `b` alternately, `rounds` times, and compares their figures round by round.
///
/// # Errors
///
/// The first error of a measurement.
pub fn paired<E>(
    rounds: usize,
    mut a: impl FnMut() -> Result<f64, E>,
    mut b: impl FnMut() -> Result<f64, E>,
) -> Result<Paired, E> {
    let figures = interleaved(rounds, &mut [&mut a, &mut b])?;
    Ok(Paired::new(&figures[0], &figures[1]))
}

/// Summary statistics of the figures of one variant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of figures.
    pub count: usize,
    /// The median.
    pub median: f64,
    /// The lower quartile (0.25 quantile).
    pub lower_quartile: f64,
    /// The upper quartile (0.75 quantile).
    pub upper_quartile: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub greatest: f64,
}

impl Summary {
    /// Summarizes figures in any order; all zero for an empty slice.
    #[must_use]
    pub fn new(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| quantile(&sorted, part);
        Self {
            count: sorted.len(),
            median: at(0.5),
            lower_quartile: at(0.25),
            upper_quartile: at(0.75),
            least: at(0.0),
            greatest: at(1.0),
        }
    }

    /// Summarizes one value of each sample.
    pub(crate) fn of<T>(samples: &[T], value: fn(&T) -> f64) -> Self {
        Self::new(&samples.iter().map(value).collect::<Vec<_>>())
    }

    /// Returns the interquartile range divided by the median; 0 for a median of 0.
    #[must_use]
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.upper_quartile - self.lower_quartile) / self.median.abs()
        }
    }
}

/// Two variants, compared round by round.
#[derive(Clone, Debug, PartialEq)]
pub struct Paired {
    /// Figures of the first variant.
    pub a: Summary,
    /// Figures of the second variant.
    pub b: Summary,
    /// Ratio `a / b` of each round. Rounds in which `b` measured 0 are left out.
    pub ratio: Summary,
}

impl Paired {
    /// Compares two variants by their figures in the same rounds.
    #[must_use]
    pub fn new(a: &[f64], b: &[f64]) -> Self {
        let ratios: Vec<f64> =
            a.iter().zip(b).filter(|(_, b)| **b != 0.0).map(|(a, b)| a / b).collect();
        Self { a: Summary::new(a), b: Summary::new(b), ratio: Summary::new(&ratios) }
    }

    /// Compares two variants by one value of each sample; samples with the same index belong to the
    /// same round.
    pub(crate) fn of<T>(a: &[T], b: &[T], value: fn(&T) -> f64) -> Self {
        let values = |samples: &[T]| samples.iter().map(value).collect::<Vec<_>>();
        Self::new(&values(a), &values(b))
    }

    /// Returns whether the median ratio is significant. It needs at least 3 rounds, and either an
    /// interquartile range below 30 % of the median, or both quartiles on the same side of 1 and
    /// further from 1 than from each other.
    #[must_use]
    pub fn is_meaningful(&self) -> bool {
        let ratio = &self.ratio;
        let clear = (ratio.lower_quartile - 1.0).abs().min((ratio.upper_quartile - 1.0).abs());
        let same_side = (ratio.lower_quartile > 1.0) == (ratio.upper_quartile > 1.0);
        ratio.count >= 3
            && (ratio.spread() < 0.3
                || same_side && clear > ratio.upper_quartile - ratio.lower_quartile)
    }

    /// Returns the median ratio if it is significant.
    #[must_use]
    pub fn meaningful_ratio(&self) -> Option<f64> {
        self.is_meaningful().then_some(self.ratio.median)
    }
}

impl fmt::Display for Paired {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.3} against {:.3}: ", self.a.median, self.b.median)?;
        match self.meaningful_ratio() {
            Some(ratio) => write!(formatter, "{ratio:.3}x")?,
            None => write!(formatter, "no ratio, the rounds differ too much")?,
        }
        let ratio = &self.ratio;
        write!(
            formatter,
            " ({} rounds; quartiles {:.3} to {:.3}, all {:.3} to {:.3})",
            ratio.count, ratio.lower_quartile, ratio.upper_quartile, ratio.least, ratio.greatest
        )
    }
}

/// Returns a quantile of sorted figures, with linear interpolation.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::convert::Infallible;

    #[test]
    fn variants_take_turns_and_every_other_round_goes_backwards() {
        let order = RefCell::new(String::new());
        let measure = |name: char, value: f64| {
            order.borrow_mut().push(name);
            Ok::<_, Infallible>(value)
        };
        let Ok(result) = paired(3, || measure('a', 4.0), || measure('b', 2.0));
        assert_eq!(order.into_inner(), "abbaab");
        assert_eq!(result.meaningful_ratio(), Some(2.0));
    }

    #[test]
    fn quartiles_lie_where_they_should() {
        let summary = Summary::new(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(
            (summary.median, summary.lower_quartile, summary.upper_quartile),
            (3.0, 2.0, 4.0)
        );
        assert_eq!((summary.least, summary.greatest, summary.count), (1.0, 5.0, 5));
        assert_eq!(Summary::new(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Summary::new(&[]), Summary::default());
    }

    #[test]
    fn a_ratio_lost_in_the_spread_is_not_given() {
        let noisy = Paired::new(&[1.0, 2.0, 1.0, 3.0, 1.0], &[2.0, 1.0, 1.0, 1.0, 2.0]);
        assert_eq!(noisy.meaningful_ratio(), None);
        assert!(noisy.to_string().contains("no ratio"), "{noisy}");
        let wide_but_clear = Paired::new(&[4.0, 5.0, 6.0, 7.0, 5.5], &[1.0; 5]);
        assert_eq!(wide_but_clear.meaningful_ratio(), Some(5.5));
        assert_eq!(
            Paired::new(&[1.0, 1.0], &[1.0, 1.0]).meaningful_ratio(),
            None,
            "two rounds say nothing"
        );
    }
}
