//! Loads as rows of a table.

use super::bridged::Carried;
use crate::experiment::report::{Column, Figure, Ratio, Row};
use crate::paired::{Paired, Summary};

/// What is shown of every load.
pub(crate) const COSTS: [Column; 4] = [
    Column { name: "sender_cpu", title: "sender CPU", unit: "%", digits: 0 },
    Column { name: "bridge_cpu", title: "bridge CPU", unit: "%", digits: 0 },
    Column { name: "receiver_cpu", title: "receiver CPU", unit: "%", digits: 0 },
    Column { name: "service_demand", title: "all three", unit: "us/KB", digits: 3 },
];

/// How the columns of [`COSTS`] came about, for a reader.
pub(crate) const COSTS_NOTE: &str = "CPU is that of the sending program's thread, of the bridge's threads and of the receiving program's thread, in percent of one CPU; what a kernel does \
     with a packet counts where it is done: the sender's acknowledgements and most of the receiver's TCP run in the bridge's send calls.";

/// The figures of [`COSTS`].
pub(crate) fn costs(rounds: &[Carried]) -> [Option<Figure>; 4] {
    [|load: &Carried| load.sender, |load: &Carried| load.bridge, |load: &Carried| load.receiver, |load: &Carried| load.demand]
        .map(|cost: fn(&Carried) -> f64| Some(summed(rounds, cost).into()))
}

/// A value of all rounds.
pub(crate) fn summed(rounds: &[Carried], value: fn(&Carried) -> f64) -> Summary {
    Summary::new(&rounds.iter().map(value).collect::<Vec<_>>())
}

/// How fast one load was against another, round by round.
pub(crate) fn speed(this: &[Carried], other: &[Carried]) -> Paired {
    let speeds = |rounds: &[Carried]| rounds.iter().map(|load| load.megabytes).collect::<Vec<_>>();
    Paired::new(&speeds(this), &speeds(other))
}

/// What one load cost against another, round by round.
pub(crate) fn demand(this: &[Carried], other: &[Carried]) -> Paired {
    let demands = |rounds: &[Carried]| rounds.iter().map(|load| load.demand).collect::<Vec<_>>();
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
