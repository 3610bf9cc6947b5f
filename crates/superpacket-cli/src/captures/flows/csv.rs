//! Writes flows in the CSV format, with a line of column names first.

use std::fmt::Write;
use std::io;

use superpacket_captures::file::OutputFile;
use superpacket_captures::{FlowCell, FlowEffect};

use super::FlowFormat;

/// A CSV file of flows.
pub(super) struct CsvFlows {
    writer: ::csv::Writer<OutputFile>,
    /// The text of the current cell; the buffer is reused for all cells.
    cell: String,
    has_names: bool,
}

impl CsvFlows {
    pub(super) fn new(file: OutputFile) -> Self {
        CsvFlows { writer: ::csv::Writer::from_writer(file), cell: String::new(), has_names: false }
    }

    /// Writes the column names, unless they have been written before.
    fn names(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.has_names, true) {
            self.writer.write_record(FlowEffect::default().columns("").map(|(name, _)| name))?;
        }
        Ok(())
    }
}

impl FlowFormat for CsvFlows {
    fn write(&mut self, flow: &FlowEffect, capture: &str) -> io::Result<()> {
        self.names()?;
        for (_, cell) in flow.columns(capture) {
            self.cell.clear();
            match cell {
                FlowCell::Text(text) => self.cell.push_str(text.as_deref().unwrap_or_default()),
                FlowCell::Number(Some(number)) => self.cell.push_str(&number.to_string()),
                FlowCell::Number(None) => {}
                // The most frequent first: `push=19 poll_end=2`.
                FlowCell::Reasons(reasons) => {
                    let mut sorted: Vec<_> = reasons.iter().collect();
                    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
                    for (name, count) in sorted {
                        let blank = if self.cell.is_empty() { "" } else { " " };
                        // Writing to a string cannot fail.
                        let _ = write!(self.cell, "{blank}{name}={count}");
                    }
                }
                _ => {}
            }
            self.writer.write_field(&self.cell)?;
        }
        self.writer.write_record(None::<&[u8]>)?;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.names()?;
        self.writer.into_inner().map_err(::csv::IntoInnerError::into_error)?.finish()
    }
}
