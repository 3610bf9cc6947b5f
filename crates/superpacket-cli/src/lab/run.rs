//! Runs single experiments, so that a failure in one does not affect the others.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use superpacket_lab::experiment::{Entry, Experiment, Session};
use superpacket_lab::{Host, LabError};
use superpacket_port::system::panic_message;

/// An experiment that failed, and not only because the machine lacks something that the experiment
/// needs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FailedExperiment {
    pub(super) name: &'static str,
    pub(super) error: String,
}

/// Beginning of the note that says why an experiment was not measured.
pub(super) const NOT_MEASURED: &str = "not measured between live hosts";

/// The outcome of an experiment.
#[derive(Debug)]
pub(super) enum ExperimentOutcome {
    /// The experiment succeeded.
    Done(Experiment),
    /// The measured or the counted form of the experiment failed; the results of the other form, if
    /// there are any.
    Failed(FailedExperiment, Option<Experiment>),
    /// The user cancelled the run.
    Cancelled,
}

/// The forms in which experiments are run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Forms<'a> {
    /// Experiments are measured between live hosts (network namespaces), and also counted on
    /// models.
    Both(Session<'a>),
    /// Experiments are only counted or simulated on models, without live hosts.
    Model,
}

/// Returns the reason why network namespaces are not available here, or `None` if they are.
///
/// # Errors
/// If a namespace cannot be created for another reason.
pub(super) fn forbidden() -> Result<Option<String>, LabError> {
    match Host::new("probe") {
        Ok(_) => Ok(None),
        Err(error) if error.is_unavailable() => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Runs an experiment.
pub(super) fn experiment(entry: &Entry, forms: Forms<'_>) -> ExperimentOutcome {
    let failed = |error: String| FailedExperiment { name: entry.name, error };
    let counted = run_guarded(entry.model);
    let Forms::Both(session) = forms else {
        return match counted {
            Ok(counted) => ExperimentOutcome::Done(counted),
            Err(error) => ExperimentOutcome::Failed(failed(error.to_string()), None),
        };
    };
    match (run_guarded(|| (entry.live)(&session)), counted) {
        (Ok(live), Ok(counted)) => ExperimentOutcome::Done(live.with_model(counted)),
        (Ok(live), Err(error)) => ExperimentOutcome::Failed(failed(error.to_string()), Some(live)),
        (Err(LabError::Cancelled), _) => ExperimentOutcome::Cancelled,
        (Err(error), Ok(mut counted)) if error.is_unavailable() => {
            counted.notes.insert(0, format!("{NOT_MEASURED}: {error}"));
            ExperimentOutcome::Done(counted)
        }
        (Err(error), counted) => ExperimentOutcome::Failed(failed(error.to_string()), counted.ok()),
    }
}

/// Runs an experiment and turns a panic into an error, so that the other experiments still run. The
/// panic hook has already printed the panic.
fn run_guarded(run: impl FnOnce() -> Result<Experiment, LabError>) -> Result<Experiment, LabError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let reason = panic_message(panic.as_ref()).unwrap_or("no message").to_owned();
        Err(LabError::Invalid { what: "a panic".into(), reason })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_lab::experiment::{Plan, Unwatched};

    const WELL: Entry = Entry {
        name: "lro",
        headline: "",
        source: "",
        summary: "",
        live: |_| Ok(Experiment::new(&WELL)),
        measurements: |plan| plan.rounds,
        model: || {
            let mut counted = Experiment::new(&WELL);
            counted.notes.push("counted".into());
            Ok(counted)
        },
    };

    fn run(entry: Entry) -> ExperimentOutcome {
        experiment(&entry, Forms::Both(Session::new(Plan::QUICK, &Unwatched)))
    }

    #[test]
    fn missing_capabilities_become_notes_and_failures_are_reported() {
        assert!(
            matches!(run(WELL), ExperimentOutcome::Done(experiment) if experiment.notes == ["counted"])
        );
        let unavailable = |_: &Session<'_>| {
            Err(LabError::Unsupported { what: "DCCP".into(), reason: "gone".into() })
        };
        let ExperimentOutcome::Done(found) = run(Entry { live: unavailable, ..WELL }) else {
            panic!("done")
        };
        assert_eq!(
            found.notes,
            ["not measured between live hosts: DCCP is not available here: gone", "counted"]
        );
        assert!(matches!(
            run(Entry { live: |_| Err(LabError::Cancelled), ..WELL }),
            ExperimentOutcome::Cancelled
        ));
        let broken =
            |_: &Session<'_>| Err(LabError::Invalid { what: "a".into(), reason: "b".into() });
        let ExperimentOutcome::Failed(FailedExperiment { name: "lro", error }, Some(_)) =
            run(Entry { live: broken, ..WELL })
        else {
            panic!("failed")
        };
        assert_eq!(error, "a: b");
    }

    #[test]
    fn a_panic_is_an_ordinary_failure() {
        let ExperimentOutcome::Failed(FailedExperiment { error, .. }, Some(counted)) =
            run(Entry { live: |_| panic!("of {}", "old"), ..WELL })
        else {
            panic!("failed")
        };
        assert_eq!((error.as_str(), counted.notes.len()), ("a panic: of old", 1));
        assert!(matches!(
            experiment(&Entry { model: || panic!("short"), ..WELL }, Forms::Model),
            ExperimentOutcome::Failed(_, None)
        ));
    }
}
