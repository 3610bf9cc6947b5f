//! Loads as rows of a table.

use super::bridged::Carried;
use crate::experiment::report::{Figure, Mark, Ratio, Row, Side};
use crate::experiment::spent;
use crate::paired::{Paired, Summary};

/// A value of all rounds.
pub(crate) fn summed(rounds: &[Carried], value: fn(&Carried) -> f64) -> Summary {
    Summary::new(&rounds.iter().map(value).collect::<Vec<_>>())
}

/// So much of the machine's CPU time may others have, and a throughput still says something of the
/// bridge.
const OTHERS: f64 = 0.25;

/// A mark on how fast one load was against another. Where others had much of the machine, it is
/// judged only if all of the spread says the same.
pub(crate) fn mark(name: &str, this: &[Carried], other: &[Carried], target: f64) -> Mark {
    let mark = Mark::paired(name, &speed(this, other), Side::AtLeast, target);
    let both: Vec<Carried> = this.iter().chain(other).copied().collect();
    let others = summed(&both, |load| load.spent.others).median;
    if others <= OTHERS || mark.met.is_none() {
        return mark;
    }
    let busy =
        format!("other programs had {:.0} % of the machine's CPU time meanwhile", others * 100.0);
    if mark.is_clear() { Mark { reason: Some(busy), ..mark } } else { mark.undecided(busy) }
}

/// The figures of [`spent::COLUMNS`].
pub(crate) fn costs(rounds: &[Carried]) -> [Option<Figure>; 5] {
    spent::figures(rounds.iter().map(|load| &load.spent))
}

/// How fast one load was against another, round by round.
pub(crate) fn speed(this: &[Carried], other: &[Carried]) -> Paired {
    let speeds = |rounds: &[Carried]| rounds.iter().map(|load| load.megabytes).collect::<Vec<_>>();
    Paired::new(&speeds(this), &speeds(other))
}

/// What one load cost against another, round by round.
pub(crate) fn demand(this: &[Carried], other: &[Carried]) -> Paired {
    let demands =
        |rounds: &[Carried]| rounds.iter().map(|load| load.spent.demand).collect::<Vec<_>>();
    Paired::new(&demands(this), &demands(other))
}

/// A row whose first column is the throughput in Mb/s, compared by that.
pub(crate) fn row(
    group: &str,
    name: &str,
    rounds: &[Carried],
    against: Option<(&str, &[Carried])>,
) -> Row {
    let throughput = Some(summed(rounds, Carried::megabits).into());
    Row {
        group: group.into(),
        name: name.into(),
        figures: [throughput].into_iter().chain(costs(rounds)).collect(),
        source: Vec::new(),
        ratio: against
            .map(|(other, others)| Ratio::paired(other, "throughput", &speed(rounds, others))),
        source_ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::Spent;

    #[test]
    fn on_a_machine_that_others_use_only_a_clear_mark_is_judged() {
        let loads = |megabytes: [f64; 3], others: f64| {
            megabytes
                .map(|megabytes| Carried { megabytes, spent: Spent { others, ..Spent::default() } })
        };
        let met = |rounds: [f64; 3], others: f64| {
            mark("m", &loads(rounds, others), &loads([2.0; 3], others), 1.175)
        };
        assert_eq!((met([3.0; 3], 0.1).met, met([3.0; 3], 0.1).reason), (Some(true), None));
        let clear = met([3.0; 3], 0.6);
        assert_eq!((clear.met, clear.value), (Some(true), Some(1.5)));
        assert!(clear.reason.is_some_and(|reason| reason.contains("60 %")));
        assert_eq!(met([2.0; 3], 0.6).met, Some(false));
        // Half of the rounds lie on both sides of the target: others may be why.
        assert_eq!(
            (met([2.3, 2.34, 2.5], 0.1).is_clear(), met([2.3, 2.34, 2.5], 0.6).met),
            (false, None)
        );
    }
}
