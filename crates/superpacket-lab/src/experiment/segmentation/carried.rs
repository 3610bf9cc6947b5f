//! Loads as rows of a table.

use super::bridged::Carried;
use crate::experiment::report::{Figure, Mark, Ratio, Row, Side};
use crate::experiment::spent;
use crate::paired::{Paired, Summary};

/// A value of all rounds.
pub(crate) fn summed(rounds: &[Carried], value: fn(&Carried) -> f64) -> Summary {
    Summary::new(&rounds.iter().map(value).collect::<Vec<_>>())
}

/// So much of the machine's CPU time may others have, and a throughput still says something of the bridge.
const OTHERS: f64 = 0.25;

/// A mark on how fast one load was against another, which is not judged where others had much of the machine.
pub(crate) fn mark(name: &str, this: &[Carried], other: &[Carried], target: f64) -> Mark {
    let mark = Mark::paired(name, &speed(this, other), Side::AtLeast, target);
    let both: Vec<Carried> = this.iter().chain(other).copied().collect();
    let others = summed(&both, |load| load.spent.others).median;
    if others <= OTHERS || mark.met.is_none() {
        return mark;
    }
    mark.undecided(format!(
        "other programs had {:.0} % of the machine's CPU time meanwhile: of its own speed nothing can be said",
        others * 100.0
    ))
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
    let demands = |rounds: &[Carried]| rounds.iter().map(|load| load.spent.demand).collect::<Vec<_>>();
    Paired::new(&demands(this), &demands(other))
}

/// A row whose first column is the throughput in Gb/s, compared by that.
pub(crate) fn row(group: &str, name: &str, rounds: &[Carried], against: Option<(&str, &[Carried])>) -> Row {
    let throughput = Some(summed(rounds, Carried::gigabits).into());
    Row {
        group: group.into(),
        name: name.into(),
        figures: [throughput].into_iter().chain(costs(rounds)).collect(),
        source: Vec::new(),
        ratio: against.map(|(other, others)| Ratio::paired(other, "throughput", &speed(rounds, others))),
        source_ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::Spent;

    #[test]
    fn a_mark_is_not_judged_on_a_machine_that_others_use() {
        let loads = |megabytes: f64, others: f64| [Carried { megabytes, spent: Spent { others, ..Spent::default() } }; 3];
        let met = |others: f64| mark("m", &loads(3.0, others), &loads(2.0, others), 1.175);
        assert_eq!((met(0.1).met, met(0.1).value), (Some(true), Some(1.5)));
        assert_eq!((met(0.6).met, met(0.6).value), (None, None));
        assert!(met(0.6).reason.is_some_and(|reason| reason.contains("60 %")));
        assert_eq!(mark("m", &loads(2.0, 0.0), &loads(2.0, 0.0), 1.175).met, Some(false));
    }
}
