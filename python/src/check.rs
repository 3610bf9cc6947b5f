//! `check`: a judge of other implementations, whose violations are objects made when they are asked
//! for.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use superpacket_captures as captures;
use superpacket_captures::{Rule, Strictness};

use crate::commands::{CommandInput, run};
use crate::errors::OptionsError;

/// Returns the rules, for the test that compares them with the enum: names, sentences, and the
/// least strictness that each is part of.
#[pyfunction]
pub(crate) fn check_rules() -> Vec<(&'static str, &'static str, &'static str)> {
    Rule::ALL.iter().map(|rule| (rule.name(), rule.sentence(), rule.strictness().name())).collect()
}

/// Packet, origin, field, rule and what was found.
type PickledViolation = (Option<u64>, Option<u64>, String, String, String);

/// A rule that a packet breaks.
#[pyclass(frozen, module = "superpacket")]
pub(crate) struct Violation {
    all: Arc<Vec<captures::Violation>>,
    index: usize,
}

impl Violation {
    fn get(&self) -> PyResult<&captures::Violation> {
        self.all.get(self.index).ok_or_else(|| PyIndexError::new_err("no such violation"))
    }
}

#[pymethods]
impl Violation {
    /// The packet's number, from 1, in what was checked; None for a packet that never left.
    #[getter]
    fn packet(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.packet)
    }

    /// The number of the packet of the original that is concerned, from 1.
    #[getter]
    fn origin(&self) -> PyResult<Option<u64>> {
        Ok(self.get()?.origin)
    }

    /// The field.
    #[getter]
    fn field(&self) -> PyResult<&str> {
        Ok(&self.get()?.field)
    }

    /// The rule.
    #[getter]
    fn rule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static RULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        RULE.import(py, "superpacket._rules", "Rule")?.call1((self.get()?.rule.name(),))
    }

    /// What was found, in words.
    #[getter]
    fn found(&self) -> PyResult<&str> {
        Ok(&self.get()?.found)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Violations, usize))> {
        let one = vec![self.get()?.clone()];
        let of = py.get_type::<Violations>().getattr("__getitem__")?;
        Ok((of, (Violations { all: Arc::new(one) }, 0)))
    }

    fn __repr__(&self) -> PyResult<String> {
        let found = self.get()?;
        let number =
            |number: Option<u64>| number.map_or("None".to_owned(), |number| number.to_string());
        let (packet, origin) = (number(found.packet), number(found.origin));
        Ok(format!(
            "<Violation {} of {}: packet {packet}, origin {origin}: {}>",
            found.rule.name(),
            found.field,
            found.found
        ))
    }
}

/// The violations of a report, in the order in which they were found.
#[pyclass(frozen, module = "superpacket", sequence)]
pub(crate) struct Violations {
    all: Arc<Vec<captures::Violation>>,
}

#[pymethods]
impl Violations {
    fn __len__(&self) -> usize {
        self.all.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<Violation> {
        let place =
            if index < 0 { index.checked_add_unsigned(self.all.len()) } else { Some(index) };
        match place
            .and_then(|place| usize::try_from(place).ok())
            .filter(|place| *place < self.all.len())
        {
            Some(index) => Ok(Violation { all: self.all.clone(), index }),
            None => Err(PyIndexError::new_err(format!("violation {index} of {}", self.all.len()))),
        }
    }

    fn __iter__(&self) -> ViolationIterator {
        ViolationIterator { all: self.all.clone(), next: 0 }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Vec<PickledViolation>,))> {
        let all = self.all.iter().map(|violation| {
            let captures::Violation { packet, origin, field, rule, found, .. } = violation;
            (*packet, *origin, field.to_string(), rule.name().to_owned(), found.to_string())
        });
        Ok((py.get_type::<Violations>().getattr("_of")?, (all.collect(),)))
    }

    /// Makes violations of what they were pickled as.
    #[staticmethod]
    fn _of(all: Vec<PickledViolation>) -> PyResult<Violations> {
        let one = |(packet, origin, field, rule, found): PickledViolation| {
            let rule = Rule::ALL.iter().find(|known| known.name() == rule);
            let rule = rule.ok_or_else(|| PyValueError::new_err("a rule of another version"))?;
            Ok(captures::Violation { packet, origin, field, rule: *rule, found })
        };
        let all = all.into_iter().map(one).collect::<PyResult<_>>()?;
        Ok(Violations { all: Arc::new(all) })
    }

    fn __repr__(&self) -> String {
        format!("<{} violations>", self.all.len())
    }
}

/// Violations, one after the other.
#[pyclass]
struct ViolationIterator {
    all: Arc<Vec<captures::Violation>>,
    next: usize,
}

#[pymethods]
impl ViolationIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self) -> Option<Violation> {
        let index = self.next;
        self.next += 1;
        (index < self.all.len()).then(|| Violation { all: self.all.clone(), index })
    }
}

/// Judges what another implementation made of packets; see `superpacket.check`.
#[pyfunction]
#[pyo3(signature = (checked, origin, *, reversible, all, strict, progress))]
pub(crate) fn check(
    py: Python<'_>,
    mut checked: CommandInput,
    mut origin: CommandInput,
    reversible: bool,
    all: bool,
    strict: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Violations)> {
    let is_input =
        |input: &CommandInput| matches!(input, CommandInput::Path(path) if path.as_os_str() == "-");
    if is_input(&checked) && is_input(&origin) {
        return Err(OptionsError::new_err(
            "checked and origin are both standard input: choose a file for one of them",
        ));
    }
    let strict = strict || checked.is_strict() || origin.is_strict();
    let mut options = captures::CheckOptions { strict, ..Default::default() };
    if reversible {
        options.rules = Strictness::Reversible;
    }
    if all {
        options.most_described = usize::MAX;
    }
    let (json, report) = run(py, progress, |progress| {
        captures::check(checked.input(), origin.input(), &options, progress)
    })?;
    Ok((json, Violations { all: Arc::new(report.described) }))
}
