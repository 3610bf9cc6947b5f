//! The result of an experiment: tables in the form of the original report, with the spread of each
//! figure, and comparisons of results with targets.

use serde::{Serialize, Serializer};

use super::Entry;
use crate::paired::{Paired, Summary};

/// The origin of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Measured with kernel TCP between hosts, through ports, engine and bridge; figures vary
    /// between runs.
    Live,
    /// Counted on the model NIC, without kernel and clock; the same in every run.
    Model,
    /// Computed by the real steering code on simulated CPUs with constant costs; the same in every
    /// run.
    Simulated,
}

/// The result of an experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name of the experiment: `lro`, `ack`, `rps`, `tso` or `gso`.
    pub name: &'static str,
    /// The original report: author, subject and year of the message that the experiment repeats.
    pub source: &'static str,
    /// Summary of the experiment's procedure, in a line or two.
    pub summary: &'static str,
    /// Tables of figures, in reading order.
    pub tables: Vec<Table>,
    /// Comparisons of results with targets.
    pub marks: Vec<Mark>,
    /// Remarks on the figures, such as parts that could not run, or differences from the original
    /// report's machine.
    pub notes: Vec<String>,
}

impl Experiment {
    /// Returns an experiment without results.
    #[must_use]
    pub const fn new(entry: &Entry) -> Self {
        let Entry { name, source, summary, .. } = *entry;
        Self { name, source, summary, tables: Vec::new(), marks: Vec::new(), notes: Vec::new() }
    }

    /// Appends the tables, comparisons with targets and notes of the model form, which supplement
    /// the measurements.
    #[must_use]
    pub fn with_model(mut self, model: Self) -> Self {
        self.tables.extend(model.tables);
        self.notes.extend(
            model.notes.into_iter().filter(|note| !self.notes.contains(note)).collect::<Vec<_>>(),
        );
        self.marks.extend(model.marks);
        self
    }
}

/// A table of figures, often in the form of the original report.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title, as in the original report.
    pub title: String,
    /// Origin of the figures.
    pub form: Form,
    /// Descriptions of the columns.
    pub columns: Vec<Column>,
    /// The rows, in reading order.
    pub rows: Vec<Row>,
    /// Number of rounds from which each figure was calculated; 1 if every run gives the same
    /// figures.
    pub rounds: usize,
    /// Description of how the figures were obtained; `None` if they are medians and quartiles of
    /// the rounds.
    pub made: Option<String>,
    /// The figures that a plot of this table shows.
    pub plot: Plot,
}

/// The figures of a table that its plot shows, and the kind of plot.
#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// The table has no plot.
    Nothing,
    /// Shows the columns with these indexes as points on one logarithmic axis. All have the same
    /// unit. If the rows have groups, there is one column, and the rows of a group are compared.
    Marks(&'static [usize]),
    /// Shows all columns as curves on two logarithmic axes.
    Curves {
        /// Title of the horizontal axis.
        over: &'static str,
        /// Position of each row on the horizontal axis.
        places: Vec<f64>,
        /// Title of the vertical axis.
        values: &'static str,
    },
}

impl Table {
    /// Returns a table without a plot.
    pub(crate) fn new(
        form: Form,
        title: impl Into<String>,
        columns: &[Column],
        rows: Vec<Row>,
        rounds: usize,
    ) -> Self {
        let (title, columns) = (title.into(), columns.into());
        Self { title, form, columns, rows, rounds, plot: Plot::Nothing, made: None }
    }
}

/// Description of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in JSON: `throughput`, `receiver_cpu`, ...
    pub name: &'static str,
    /// Heading of the column.
    pub title: &'static str,
    /// Unit: `Gb/s`, `%`, `us/KB`, `1/s`, `MB/s`; empty for counts.
    pub unit: &'static str,
    /// Number of digits after the decimal point.
    pub digits: usize,
}

impl Column {
    /// Returns a column of counts.
    pub(crate) const fn count(name: &'static str, title: &'static str) -> Self {
        Self { name, title, unit: "", digits: 0 }
    }
}

/// A row of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the group to which the row belongs, such as an MTU pair or a client; may be empty.
    pub group: String,
    /// Name of the row within its group.
    pub name: String,
    /// Figures of the row, one per column.
    pub figures: Vec<Option<Figure>>,
    /// The original report's figures, one per column; empty if it has none.
    pub source: Vec<Option<f64>>,
    /// Ratio of this row to another row, in one column.
    pub ratio: Option<Ratio>,
    /// The original report's value of this ratio.
    pub source_ratio: Option<f64>,
    /// The CPUs that were fully used during the measurement; `None` if the experiment does not
    /// record them.
    pub full_cpu: Option<FullCpu>,
}

/// The CPUs that were fully used during a measurement, and so limited its result. More CPUs for
/// other work would gain nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FullCpu {
    /// The CPU of the bridge's thread that receives packets.
    Queue,
    /// The CPU of a program that sends or answers requests.
    Load,
    /// Both the CPU that receives packets and a CPU of the load.
    Both,
    /// No CPU: the result is limited by the latency of the round trips.
    #[serde(rename = "none")]
    Neither,
}

impl FullCpu {
    /// Returns the text for a cell of a table.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Queue => "the queue's",
            Self::Load => "the load's",
            Self::Both => "both",
            Self::Neither => "none",
        }
    }
}

impl Row {
    /// Returns a row without a comparison with another row.
    pub(crate) fn new(
        group: impl Into<String>,
        name: impl Into<String>,
        figures: Vec<Option<Figure>>,
    ) -> Self {
        Self {
            group: group.into(),
            name: name.into(),
            figures,
            source: Vec::new(),
            ratio: None,
            source_ratio: None,
            full_cpu: None,
        }
    }

    /// Returns a row of figures without spread, and without a comparison with another row.
    pub(crate) fn exact(
        group: impl Into<String>,
        name: impl Into<String>,
        figures: &[f64],
    ) -> Self {
        let figures = figures.iter().map(|&figure| Some(Figure::exact(figure)));
        Self::new(group, name, figures.collect())
    }

    /// Returns a row of counts, without figures of the original report.
    pub(crate) fn counts<const N: usize>(
        group: impl Into<String>,
        name: impl Into<String>,
        counts: [u64; N],
    ) -> Self {
        Self::exact(group, name, &counts.map(|count| count as f64))
    }
}

/// A value with its spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the rounds, or an exact count.
    pub value: f64,
    /// Lower quartile of the rounds; equal to `value` if every run gives the same.
    pub low: f64,
    /// Upper quartile of the rounds.
    pub high: f64,
}

impl Figure {
    /// Returns a figure without spread.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { value, low: value, high: value }
    }
}

impl From<Summary> for Figure {
    fn from(summary: Summary) -> Self {
        Self { value: summary.median, low: summary.lower_quartile, high: summary.upper_quartile }
    }
}

/// The ratio of two rows in one column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Name of the row that is the denominator.
    pub against: String,
    /// Name of the compared column.
    pub column: &'static str,
    /// Median of the rounds' ratios; `None` if the rounds differ too much for a significant ratio.
    pub value: Option<f64>,
    /// Lower quartile of the rounds' ratios.
    pub low: f64,
    /// Upper quartile of the rounds' ratios.
    pub high: f64,
}

impl Ratio {
    /// Returns the ratio of two variants that were measured in turn.
    #[must_use]
    pub fn paired(against: impl Into<String>, column: &'static str, paired: &Paired) -> Self {
        let Summary { lower_quartile: low, upper_quartile: high, .. } = paired.ratio;
        Self { against: against.into(), column, value: paired.meaningful_ratio(), low, high }
    }

    /// Returns a ratio without spread.
    #[must_use]
    pub fn exact(against: impl Into<String>, column: &'static str, value: f64) -> Self {
        Self { against: against.into(), column, value: Some(value), low: value, high: value }
    }
}

/// The side of the target on which a value should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The value should be at least the target.
    AtLeast,
    /// The value should be at most the target.
    AtMost,
}

/// A target of an experiment, with the value reached and the verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// The experiment and the comparison, such as `lro: 4K pages, LRO against none, MTU 1500`.
    pub name: String,
    /// Origin of the value.
    pub form: Form,
    /// The value reached; `None` if it could not be measured, or if the rounds differ too much.
    pub value: Option<f64>,
    /// The target.
    pub target: f64,
    /// The side of the target on which the value should be.
    pub side: Side,
    /// Whether the target was reached; `None` without a value, or if the value is nearer to the
    /// target than the spread allows to tell.
    pub met: Option<bool>,
    /// Whether the verdict is missing because no CPU had idle time that a gain could have used.
    pub nothing_to_spare: bool,
    /// Lower and upper quartile of the rounds' values; both equal `value` if every run gives the
    /// same.
    pub spread: [f64; 2],
    /// The reason for a missing verdict, or a remark on the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The original report's value, if it has one.
    pub source: Option<f64>,
    /// Name in a short report, within its experiment; `None` if only full reports show the mark.
    #[serde(skip)]
    pub brief: Option<&'static str>,
}

impl Mark {
    /// Returns a mark that judges the ratio of two variants, measured in turn, by its median.
    ///
    /// If both quartiles lie on one side of the target, that side is the verdict. Otherwise the
    /// median must differ from the target by more than 1.57 times the interquartile range over the
    /// square root of the number of rounds (McGill, Tukey and Larsen, Variations of Box Plots,
    /// 1978). If it does not, there is a value but no verdict. A verdict needs at least three
    /// rounds.
    #[must_use]
    pub fn paired(name: impl Into<String>, paired: &Paired, side: Side, target: f64) -> Self {
        let Summary { count, median, lower_quartile: low, upper_quartile: high, .. } = paired.ratio;
        let mark =
            Self { spread: [low, high], ..Self::exact(name, Form::Live, median, side, target) };
        if count < 3 {
            return mark.undecided("at least three rounds are needed");
        }
        if mark.is_clear() {
            let reason = (!paired.is_meaningful()).then(|| {
                "the rounds differ much, but their quartiles lie on this side of the target"
                    .to_owned()
            });
            return Self { reason, ..mark };
        }
        if !paired.is_meaningful() {
            return mark.undecided("the rounds differ too much for a significant ratio");
        }
        let inside = format!("the target lies inside the spread {low:.3}-{high:.3}");
        let chance = 1.57 * (high - low) / (count as f64).sqrt();
        if (median - target).abs() > chance {
            Self { reason: Some(format!("judged by the median: {inside}")), ..mark }
        } else {
            Self {
                met: None,
                reason: Some(format!(
                    "{inside}, and {count} rounds do not tell on which side of it the median belongs"
                )),
                ..mark
            }
        }
    }

    /// Returns a mark on a value that depends on an assumption. `range` holds the lowest and the
    /// highest value under plausible assumptions. There is a verdict only if it is the same for the
    /// whole range; otherwise the reason names the `assumption`.
    #[must_use]
    pub fn ranged(
        name: impl Into<String>,
        form: Form,
        value: f64,
        range: [f64; 2],
        side: Side,
        target: f64,
        assumption: &str,
    ) -> Self {
        let mark = Self { spread: range, ..Self::exact(name, form, value, side, target) };
        let [low, high] = range.map(|end| reached(end, side, target));
        if low == high {
            mark
        } else {
            Self { met: None, reason: Some(format!("it depends on {assumption}")), ..mark }
        }
    }

    /// Returns whether both quartiles lie on the same side of the target.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        let [low, high] = self.spread;
        self.target <= low || high <= self.target
    }

    /// Sets the name for short reports, and the value that the original report found.
    #[must_use]
    pub fn in_brief(self, brief: &'static str, source: Option<f64>) -> Self {
        Self { brief: Some(brief), source, ..self }
    }

    /// Returns a mark on a value without spread.
    #[must_use]
    pub fn exact(name: impl Into<String>, form: Form, value: f64, side: Side, target: f64) -> Self {
        let met = Some(reached(value, side, target));
        Self {
            name: name.into(),
            form,
            value: Some(value),
            target,
            side,
            met,
            nothing_to_spare: false,
            spread: [value; 2],
            reason: None,
            source: None,
            brief: None,
        }
    }

    /// Returns a mark that could not be measured, with the reason.
    #[must_use]
    pub fn unmeasured(
        name: impl Into<String>,
        side: Side,
        target: f64,
        reason: impl Into<String>,
    ) -> Self {
        let mark = Self { spread: [0.0; 2], ..Self::exact(name, Form::Live, 0.0, side, target) };
        mark.undecided(reason)
    }

    /// Removes the verdict, because no CPU had idle time that a gain could have used. `reason`
    /// states how much idle time there was.
    #[must_use]
    pub fn with_nothing_to_spare(self, reason: impl Into<String>) -> Self {
        Self { met: None, nothing_to_spare: true, reason: Some(reason.into()), ..self }
    }

    /// Removes the value and the verdict, but keeps the spread, and sets the reason.
    #[must_use]
    pub fn undecided(self, reason: impl Into<String>) -> Self {
        Self { value: None, met: None, reason: Some(reason.into()), ..self }
    }
}

/// Returns whether a value meets the target.
fn reached(value: f64, side: Side, target: f64) -> bool {
    match side {
        Side::AtLeast => value >= target,
        Side::AtMost => value <= target,
    }
}

/// Serializes the rows of all tables, each with its table's title and form, and figures by name.
impl Serialize for Experiment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            source: &'a str,
            name: &'a str,
            summary: &'a str,
            rows: Vec<FlatRow<'a>>,
            notes: &'a [String],
        }
        #[derive(Serialize)]
        struct FlatRow<'a> {
            table: &'a str,
            form: Form,
            rounds: usize,
            group: &'a str,
            name: &'a str,
            figures: std::collections::BTreeMap<&'a str, FlatFigure<'a>>,
            source: std::collections::BTreeMap<&'a str, f64>,
            ratio: &'a Option<Ratio>,
            source_ratio: Option<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            full_cpu: Option<FullCpu>,
        }
        #[derive(Serialize)]
        struct FlatFigure<'a> {
            #[serde(flatten)]
            figure: Figure,
            unit: &'a str,
        }
        let rows = self.tables.iter().flat_map(|table| {
            table.rows.iter().map(move |row| FlatRow {
                table: &table.title,
                form: table.form,
                rounds: table.rounds,
                group: &row.group,
                name: &row.name,
                figures: (table.columns.iter().zip(&row.figures))
                    .filter_map(|(column, figure)| {
                        Some((column.name, FlatFigure { figure: (*figure)?, unit: column.unit }))
                    })
                    .collect(),
                source: table
                    .columns
                    .iter()
                    .zip(&row.source)
                    .filter_map(|(column, value)| Some((column.name, (*value)?)))
                    .collect(),
                ratio: &row.ratio,
                source_ratio: row.source_ratio,
                full_cpu: row.full_cpu,
            })
        });
        let flat = Flat {
            source: self.source,
            name: self.name,
            summary: self.summary,
            rows: rows.collect(),
            notes: &self.notes,
        };
        flat.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry {
        name: "lro",
        headline: "something",
        source: "somebody, something, 2007",
        summary: "Something is done.",
        live: |_| Ok(Experiment::new(&ENTRY)),
        measurements: |plan| plan.rounds,
        model: || Ok(Experiment::new(&ENTRY)),
    };

    fn paired(a: &[f64]) -> Paired {
        Paired::new(a, &vec![1.0; a.len()])
    }

    #[test]
    fn a_count_does_not_stand_in_for_a_measurement() {
        let mut live = Experiment::new(&ENTRY);
        live.marks.push(Mark::paired("clear", &paired(&[3.0, 3.1, 2.9]), Side::AtLeast, 2.5));
        live.marks.push(Mark::paired("hidden", &paired(&[0.2, 1.0, 6.0]), Side::AtLeast, 2.5));
        live.notes.push("said twice".into());
        assert_eq!((live.marks[0].met, live.marks[1].met), (Some(true), None));
        assert_eq!(
            (live.marks[0].value, live.marks[1].value),
            (Some(3.0), None),
            "a value that means nothing is not given"
        );
        assert!(
            live.marks[1].spread[0] < 1.0 && live.marks[1].spread[1] > 1.0,
            "but between what the rounds lie is"
        );
        let mut model = Experiment::new(&ENTRY);
        model.marks.push(Mark::exact("packets", Form::Model, 40.0, Side::AtMost, 40.0));
        model.notes.push("said twice".into());
        let joined = live.with_model(model);
        let judged: Vec<_> =
            joined.marks.iter().map(|mark| (mark.name.as_str(), mark.form, mark.met)).collect();
        assert_eq!(
            judged,
            [
                ("clear", Form::Live, Some(true)),
                ("hidden", Form::Live, None),
                ("packets", Form::Model, Some(true))
            ]
        );
        assert_eq!(joined.notes, ["said twice"]);
    }

    #[test]
    fn a_spread_on_one_side_of_the_target_has_a_verdict() {
        let judged =
            |rounds: &[f64], side, target| Mark::paired("m", &paired(rounds), side, target);
        // The spread is too wide for a significant ratio, but lies on one side of the target.
        let (low, high) = ([0.5, 0.9, 1.6], [1.2, 1.5, 3.0]);
        assert_eq!(judged(&high, Side::AtLeast, 1.0).met, Some(true));
        let missed = judged(&low, Side::AtLeast, 2.0);
        assert_eq!((missed.met, missed.value), (Some(false), Some(0.9)));
        assert!(missed.reason.is_some_and(|reason| reason.contains("differ much")));
        assert_eq!(judged(&low, Side::AtLeast, 1.0).met, None, "on both sides");
        assert_eq!(judged(&[2.0, 2.0], Side::AtLeast, 1.0).met, None, "of two rounds");
    }

    #[test]
    fn what_hangs_on_an_assumption_is_a_range() {
        let judged = |target| {
            let mark = Mark::ranged(
                "m",
                Form::Simulated,
                3.0,
                [2.7, 3.6],
                Side::AtLeast,
                target,
                "a share",
            );
            (mark.met, mark.value, mark.reason)
        };
        assert_eq!(judged(2.5), (Some(true), Some(3.0), None));
        assert_eq!(judged(2.9), (None, Some(3.0), Some("it depends on a share".into())));
        assert_eq!(judged(4.0), (Some(false), Some(3.0), None));
    }

    #[test]
    fn a_target_inside_the_spread_is_decided_by_many_rounds_only() {
        let judged = |rounds: &[f64], side, target| {
            let mark = Mark::paired("m", &paired(rounds), side, target);
            (mark.met, mark.value, mark.reason.unwrap_or_default())
        };
        let three = [0.95, 1.0, 1.05];
        // Spread on one side of the target: decided by the median.
        assert_eq!(judged(&three, Side::AtLeast, 0.975), (Some(true), Some(1.0), String::new()));
        assert_eq!(judged(&three, Side::AtLeast, 1.2), (Some(false), Some(1.0), String::new()));
        assert_eq!(judged(&three, Side::AtMost, 1.025), (Some(true), Some(1.0), String::new()));
        let (met, value, reason) = judged(&three, Side::AtLeast, 0.98);
        assert_eq!((met, value), (None, Some(1.0)));
        assert_eq!(
            reason,
            "the target lies inside the spread 0.975-1.025, and 3 rounds do not tell on which side of it the median belongs"
        );
        assert_eq!(judged(&three, Side::AtMost, 1.0).0, None, "on the target itself");
        // Quartiles of 0.975 and 1.025 again, of 49 rounds: chance moves their median by 0.0112.
        let many: Vec<f64> = (0..49).map(|round| 0.95 + 0.1 * f64::from(round) / 48.0).collect();
        let (met, value, reason) = judged(&many, Side::AtLeast, 0.98);
        assert_eq!((met, value.map(|value| (value * 1e6).round())), (Some(true), Some(1e6)));
        assert_eq!(reason, "judged by the median: the target lies inside the spread 0.975-1.025");
        assert_eq!(judged(&many, Side::AtMost, 0.98).0, Some(false));
        assert_eq!(judged(&many, Side::AtLeast, 0.99).0, None, "too near");
    }

    #[test]
    fn machines_find_figures_by_name_and_miss_what_is_not_there() -> Result<(), serde_json::Error> {
        let column = |name, unit| Column { name, title: "heading", unit, digits: 1 };
        let mut experiment = Experiment::new(&ENTRY);
        experiment.tables.push(Table {
            title: "as the source has it".into(),
            form: Form::Live,
            columns: vec![column("throughput", "Gb/s"), column("cpu", "%")],
            rows: vec![Row {
                group: "MTU 1500".into(),
                name: "none".into(),
                figures: vec![Some(Figure { value: 3.0, low: 2.5, high: 3.5 }), None],
                source: vec![None, Some(89.0)],
                ratio: Some(Ratio {
                    against: "4K".into(),
                    column: "throughput",
                    value: None,
                    low: 0.2,
                    high: 3.0,
                }),
                source_ratio: None,
                full_cpu: Some(FullCpu::Neither),
            }],
            rounds: 3,
            plot: Plot::Nothing,
            made: None,
        });
        let json = serde_json::to_value(&experiment)?;
        let row = &json["rows"][0];
        assert_eq!(
            row["figures"],
            serde_json::json!({"throughput": {"value": 3.0, "low": 2.5, "high": 3.5, "unit": "Gb/s"}})
        );
        assert_eq!(
            (&row["source"], &row["form"]),
            (&serde_json::json!({"cpu": 89.0}), &serde_json::json!("live"))
        );
        assert_eq!(row["full_cpu"], "none");
        assert!(row["ratio"]["value"].is_null() && row["ratio"]["high"] == 3.0, "{row}");
        Ok(())
    }
}
