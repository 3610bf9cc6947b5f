//! `superpacket analyze --flows`: the file with all flows.

mod csv;
mod json;
#[cfg(feature = "parquet")]
mod parquet;

use std::io;
use std::path::{Path, PathBuf};

use superpacket_captures::file::{CaptureError, OutputFile, same_file};
use superpacket_captures::{CaptureFlows, FlowEffect};

use self::csv::CsvFlows;
use self::json::{JsonFlows, JsonForm};
#[cfg(feature = "parquet")]
use self::parquet::ParquetFlows;
use super::is_stream;
use crate::failure::Failure;

/// A file with all flows of captures, in the format that its name selects.
pub(super) struct FlowFile {
    /// The name of the output in error messages.
    name: String,
    format: Box<dyn FlowFormat>,
}

/// A file format for flows.
trait FlowFormat {
    /// Writes a flow of the capture with this name.
    fn write(&mut self, flow: &FlowEffect, capture: &str) -> io::Result<()>;

    /// Completes the file, with a footer if the format has one.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl FlowFile {
    /// Opens a file; `-` is standard output, in CSV.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the name selects no format, or is that of an input; any error of
    /// opening the file.
    pub(super) fn create(path: &Path, inputs: &[PathBuf]) -> Result<Self, Failure> {
        let name = match is_stream(path) {
            true => "standard output".to_owned(),
            false => path.display().to_string(),
        };
        if !is_stream(path) && inputs.iter().any(|input| same_file(input, path).unwrap_or(false)) {
            return Err(Failure::Usage(format!(
                "{name}: is an input too; write the flows to another file"
            )));
        }
        let open = || {
            OutputFile::create(path)
                .map_err(|source| CaptureError::Create { file: name.clone(), source })
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format: Box<dyn FlowFormat> = match extension.unwrap_or_default() {
            _ if is_stream(path) => Box::new(CsvFlows::new(open()?)),
            "csv" => Box::new(CsvFlows::new(open()?)),
            "json" => Box::new(JsonFlows::new(open()?, JsonForm::Array)),
            "ndjson" => Box::new(JsonFlows::new(open()?, JsonForm::Lines)),
            #[cfg(feature = "parquet")]
            "parquet" => Box::new(
                ParquetFlows::new(open()?)
                    .map_err(|source| CaptureError::Create { file: name.clone(), source })?,
            ),
            #[cfg(not(feature = "parquet"))]
            "parquet" => {
                return Err(Failure::Usage(format!(
                    "{name}: this build cannot write Parquet. Write .csv, .json or .ndjson, or \
                     build with the feature `parquet`: \
                     cargo install --path crates/superpacket-cli --features parquet"
                )));
            }
            _ => {
                return Err(Failure::Usage(format!(
                    "{name}: the name must end in .csv, .json, .ndjson or .parquet"
                )));
            }
        };
        Ok(FlowFile { name, format })
    }

    /// Writes the flows of a capture.
    pub(super) fn write(&mut self, flows: &CaptureFlows) -> Result<(), CaptureError> {
        flows
            .rows()
            .try_for_each(|flow| self.format.write(&flow, &flows.file))
            .map_err(|source| CaptureError::Write { file: self.name.clone(), source })
    }

    /// Completes the file, and renames it from its temporary name to its own.
    pub(super) fn finish(self) -> Result<(), CaptureError> {
        let FlowFile { name, format } = self;
        format.finish().map_err(|source| CaptureError::Write { file: name, source })
    }
}
