//! The Python module `superpacket._superpacket`: what the package's Python files stand on.
//!
//! `capture` reads files, `packet` has their packets, `list` several in memory, `layers` these
//! packets' headers, `columns` the same as Arrow columns, `writer` writes files, `offered` takes
//! packets of any kind, `pickled` keeps them for other processes, `commands` are those of the
//! program, `check` its judge, `corpus` what workers do with many captures, `progress` their bars
//! and Ctrl-C, `exclusive` lets threads wait for each other, `engine` is the aggregator and the
//! segmenter. Nothing here is unsafe: buffers are Python's own `bytes`.

mod capture;
mod check;
mod columns;
mod commands;
mod corpus;
mod engine;
mod errors;
mod exclusive;
mod interruptible;
mod layers;
mod list;
mod offered;
mod packet;
mod pickled;
mod progress;
mod writer;

use pyo3::prelude::*;

/// The compiled part of the package `superpacket`.
#[pymodule]
mod _superpacket {
    #[pymodule_export]
    use super::capture::Capture;
    #[pymodule_export]
    use super::check::{Violation, Violations, check, check_rules};
    #[pymodule_export]
    use super::columns::{ColumnBatch, Columns};
    #[pymodule_export]
    use super::commands::{Page, analyze, coalesce, is_capture, segment, steer, verify};
    #[pymodule_export]
    use super::corpus::{CorpusSummary, analyze_part, index};
    #[pymodule_export]
    use super::engine::{Aggregator, Segmenter, SuperPacket, engine_reasons, segment_errors};
    #[pymodule_export]
    use super::errors::{CaptureError, Error, OptionsError, SegmentError};
    #[pymodule_export]
    use super::list::PacketList;
    #[pymodule_export]
    use super::packet::Packet;
    #[pymodule_export]
    use super::writer::Writer;
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
