//! Writes flows in the JSON format: an array of objects, or one object per line.

use std::io::{self, BufWriter, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use superpacket_captures::file::OutputFile;
use superpacket_captures::{FlowCell, FlowEffect};

use super::FlowFormat;

/// How the objects of a JSON file are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonForm {
    /// The file is one JSON array of objects.
    Array,
    /// Each line of the file is one JSON object.
    Lines,
}

/// A JSON file of flows.
pub(super) struct JsonFlows {
    writer: BufWriter<OutputFile>,
    form: JsonForm,
    is_empty: bool,
}

impl JsonFlows {
    pub(super) fn new(file: OutputFile, form: JsonForm) -> Self {
        JsonFlows { writer: BufWriter::new(file), form, is_empty: true }
    }
}

impl FlowFormat for JsonFlows {
    fn write(&mut self, flow: &FlowEffect, capture: &str) -> io::Result<()> {
        let is_first = std::mem::replace(&mut self.is_empty, false);
        self.writer.write_all(match (self.form, is_first) {
            (JsonForm::Array, true) => b"[\n",
            (JsonForm::Array, false) => b",\n",
            (JsonForm::Lines, true) => b"",
            (JsonForm::Lines, false) => b"\n",
        })?;
        Ok(serde_json::to_writer(&mut self.writer, &JsonObject { flow, capture })?)
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.writer.write_all(match (self.form, self.is_empty) {
            (JsonForm::Array, true) => b"[]\n",
            (JsonForm::Array, false) => b"\n]\n",
            (JsonForm::Lines, true) => b"",
            (JsonForm::Lines, false) => b"\n",
        })?;
        self.writer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
    }
}

/// A flow as an object, with the columns as keys.
struct JsonObject<'a> {
    flow: &'a FlowEffect,
    capture: &'a str,
}

impl Serialize for JsonObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = self.flow.columns(self.capture);
        let mut object = serializer.serialize_map(Some(columns.len()))?;
        for (name, cell) in columns {
            match cell {
                FlowCell::Text(text) => object.serialize_entry(name, &text)?,
                FlowCell::Number(number) => object.serialize_entry(name, &number)?,
                FlowCell::Reasons(reasons) => object.serialize_entry(name, reasons)?,
                _ => {}
            }
        }
        object.end()
    }
}
