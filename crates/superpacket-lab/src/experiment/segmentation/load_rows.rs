//! Table rows and comparisons with targets, from the results of loads.

use super::hosts::LoadResult;
use crate::experiment::cpu_costs;
use crate::experiment::report::{Figure, Mark, Ratio, Row, Side};
use crate::paired::{Paired, Summary};

/// Highest share of CPU time used by other programs at which throughput still measures the bridge.
const OTHERS: f64 = 0.25;

/// Compares the ratio of two loads' throughputs with a target. If other programs used much CPU
/// time, there is a verdict only if both quartiles of the ratio lie on the same side of the target.
pub(crate) fn mark(name: &str, this: &[LoadResult], other: &[LoadResult], target: f64) -> Mark {
    let mark = Mark::paired(name, &speed(this, other), Side::AtLeast, target);
    let both: Vec<LoadResult> = this.iter().chain(other).copied().collect();
    let others = Summary::of(&both, |load| load.costs.others).median;
    if others <= OTHERS || mark.met.is_none() {
        return mark;
    }
    let busy = format!(
        "other programs used {:.0} % of the machine's CPU time during the measurement",
        others * 100.0
    );
    if mark.is_clear() { Mark { reason: Some(busy), ..mark } } else { mark.undecided(busy) }
}

/// Returns the CPU costs over all rounds of a load, one figure for each of [`cpu_costs::COLUMNS`].
pub(crate) fn costs(rounds: &[LoadResult]) -> [Option<Figure>; 5] {
    cpu_costs::figures(rounds.iter().map(|load| &load.costs))
}

/// Compares the throughput of two loads, round by round.
pub(crate) fn speed(this: &[LoadResult], other: &[LoadResult]) -> Paired {
    Paired::of(this, other, |load| load.megabytes)
}

/// Compares the CPU time per byte of two loads, round by round.
pub(crate) fn demand(this: &[LoadResult], other: &[LoadResult]) -> Paired {
    Paired::of(this, other, |load| load.costs.demand)
}

/// Returns a row with the throughput of a load in Mb/s and its CPU costs. Its throughput is
/// compared with that of the load `against`.
pub(crate) fn row(
    group: &str,
    name: &str,
    rounds: &[LoadResult],
    against: Option<(&str, &[LoadResult])>,
) -> Row {
    let throughput = Some(Summary::of(rounds, LoadResult::megabits).into());
    Row {
        ratio: against
            .map(|(other, others)| Ratio::paired(other, "throughput", &speed(rounds, others))),
        ..Row::new(group, name, [throughput].into_iter().chain(costs(rounds)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cpu_costs::CpuCosts;

    #[test]
    fn on_a_machine_that_others_use_only_a_clear_mark_is_judged() {
        let loads = |megabytes: [f64; 3], others: f64| {
            megabytes.map(|megabytes| LoadResult {
                megabytes,
                costs: CpuCosts { others, ..CpuCosts::default() },
            })
        };
        let met = |rounds: [f64; 3], others: f64| {
            mark("m", &loads(rounds, others), &loads([2.0; 3], others), 1.175)
        };
        assert_eq!((met([3.0; 3], 0.1).met, met([3.0; 3], 0.1).reason), (Some(true), None));
        let clear = met([3.0; 3], 0.6);
        assert_eq!((clear.met, clear.value), (Some(true), Some(1.5)));
        assert!(clear.reason.is_some_and(|reason| reason.contains("60 %")));
        assert_eq!(met([2.0; 3], 0.6).met, Some(false));
        // The rounds lie on both sides of the target, and other programs may be the cause.
        assert_eq!(
            (met([2.3, 2.34, 2.5], 0.1).is_clear(), met([2.3, 2.34, 2.5], 0.6).met),
            (false, None)
        );
    }
}
