//! Runs single experiments, so that a failure in one does not affect the others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use superpacket_lab::experiment::{Entry, Experiment, Session};
use superpacket_lab::{Host, LabError};

/// An experiment that failed for another reason than a missing capability of the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failed {
    pub(super) name: &'static str,
    pub(super) error: String,
}

/// Beginning of the note that says why an experiment was not measured.
pub(super) const NOT_MEASURED: &str = "not measured between live hosts";

/// The outcome of an experiment.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It succeeded.
    Done(Experiment),
    /// It failed. The part that needs no hosts may still have results.
    Failed(Failed, Option<Experiment>),
    /// The user cancelled the run.
    Cancelled,
}

/// The forms in which experiments are run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Forms<'a> {
    /// Measured between live hosts, and counted.
    Both(Session<'a>),
    /// Counted only.
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
pub(super) fn experiment(entry: &Entry, forms: Forms<'_>) -> Outcome {
    let failed = |error: String| Failed { name: entry.name, error };
    let counted = caught(entry.model);
    let Forms::Both(session) = forms else {
        return match counted {
            Ok(counted) => Outcome::Done(counted),
            Err(error) => Outcome::Failed(failed(error.to_string()), None),
        };
    };
    match (caught(|| (entry.live)(&session)), counted) {
        (Ok(live), Ok(counted)) => Outcome::Done(live.with_model(counted)),
        (Ok(live), Err(error)) => Outcome::Failed(failed(error.to_string()), Some(live)),
        (Err(LabError::Cancelled), _) => Outcome::Cancelled,
        (Err(error), Ok(mut counted)) if error.is_unavailable() => {
            counted.notes.insert(0, format!("{NOT_MEASURED}: {error}"));
            Outcome::Done(counted)
        }
        (Err(error), counted) => Outcome::Failed(failed(error.to_string()), counted.ok()),
    }
}

/// Runs an experiment and turns a panic into an error, so that the other experiments still run. The
/// panic hook has already printed the panic.
fn caught(run: impl FnOnce() -> Result<Experiment, LabError>) -> Result<Experiment, LabError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(LabError::Invalid { what: "a panic".into(), reason: words(panic.as_ref()) })
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without words").to_owned()
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

    fn run(entry: Entry) -> Outcome {
        experiment(&entry, Forms::Both(Session::new(Plan::QUICK, &Unwatched)))
    }

    #[test]
    fn what_the_machine_lacks_is_a_note_and_what_fails_is_told() {
        assert!(matches!(run(WELL), Outcome::Done(experiment) if experiment.notes == ["counted"]));
        let unavailable = |_: &Session<'_>| {
            Err(LabError::Unsupported { what: "DCCP".into(), reason: "gone".into() })
        };
        let Outcome::Done(found) = run(Entry { live: unavailable, ..WELL }) else { panic!("done") };
        assert_eq!(
            found.notes,
            ["not measured between live hosts: DCCP is not available here: gone", "counted"]
        );
        assert!(matches!(
            run(Entry { live: |_| Err(LabError::Cancelled), ..WELL }),
            Outcome::Cancelled
        ));
        let broken =
            |_: &Session<'_>| Err(LabError::Invalid { what: "a".into(), reason: "b".into() });
        let Outcome::Failed(Failed { name: "lro", error }, Some(_)) =
            run(Entry { live: broken, ..WELL })
        else {
            panic!("failed")
        };
        assert_eq!(error, "a: b");
    }

    #[test]
    fn a_panic_is_a_failure_like_others() {
        let Outcome::Failed(Failed { error, .. }, Some(counted)) =
            run(Entry { live: |_| panic!("of {}", "old"), ..WELL })
        else {
            panic!("failed")
        };
        assert_eq!((error.as_str(), counted.notes.len()), ("a panic: of old", 1));
        assert!(matches!(
            experiment(&Entry { model: || panic!("short"), ..WELL }, Forms::Model),
            Outcome::Failed(_, None)
        ));
    }
}
