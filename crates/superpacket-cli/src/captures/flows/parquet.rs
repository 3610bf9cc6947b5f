//! Writes flows in the Parquet format. Text and number columns are optional, and the reasons why
//! packets did not merge are a map.

use std::io;
use std::sync::Arc;

use ::parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use superpacket_captures::file::OutputFile;
use superpacket_captures::{FlowCell, FlowEffect};

use super::FlowFormat;

/// Number of rows per row group, which is held in memory.
const ROW_GROUP: usize = 1 << 16;

/// A Parquet file of flows.
pub(super) struct ParquetFlows {
    writer: SerializedFileWriter<OutputFile>,
    /// The columns of the row group that is being filled.
    columns: Vec<ParquetColumn>,
    /// Number of rows in the columns.
    rows: usize,
}

/// The values of a column, and its definition and repetition levels as Parquet defines them.
enum ParquetColumn {
    Text { values: Vec<ByteArray>, present: Vec<i16> },
    Number { values: Vec<i64>, present: Vec<i16> },
    Reasons { names: Vec<ByteArray>, counts: Vec<i64>, present: Vec<i16>, repeated: Vec<i16> },
}

impl ParquetFlows {
    pub(super) fn new(file: OutputFile) -> io::Result<Self> {
        let mut schema = "message flows {".to_owned();
        let mut columns = Vec::new();
        for (name, cell) in FlowEffect::default().columns("") {
            let (column, kind) = ParquetColumn::like(&cell);
            schema.push_str(&kind.replace("NAME", name));
            columns.push(column);
        }
        schema.push('}');
        let schema = Arc::new(parse_message_type(&schema).map_err(failed)?);
        let properties = Arc::new(WriterProperties::builder().build());
        let writer = SerializedFileWriter::new(file, schema, properties).map_err(failed)?;
        Ok(ParquetFlows { writer, columns, rows: 0 })
    }

    /// Writes the rows that are in memory.
    fn write_rows(&mut self) -> Result<(), ParquetError> {
        if std::mem::take(&mut self.rows) == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        self.columns.iter_mut().try_for_each(|column| column.write(&mut group))?;
        group.close().map(drop)
    }
}

impl FlowFormat for ParquetFlows {
    fn write(&mut self, flow: &FlowEffect, capture: &str) -> io::Result<()> {
        for (column, (_, cell)) in self.columns.iter_mut().zip(flow.columns(capture)) {
            column.push(cell);
        }
        self.rows += 1;
        if self.rows == ROW_GROUP { self.write_rows().map_err(failed) } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.write_rows().map_err(failed)?;
        self.writer.into_inner().map_err(failed)?.finish()
    }
}

impl ParquetColumn {
    /// Returns an empty column for cells of the same kind as `cell`, and the column's type in
    /// Parquet's schema language.
    fn like(cell: &FlowCell<'_>) -> (Self, &'static str) {
        match cell {
            FlowCell::Number(_) => (
                ParquetColumn::Number { values: Vec::new(), present: Vec::new() },
                "optional int64 NAME (INTEGER(64, false));",
            ),
            FlowCell::Reasons(_) => (
                ParquetColumn::Reasons {
                    names: Vec::new(),
                    counts: Vec::new(),
                    present: Vec::new(),
                    repeated: Vec::new(),
                },
                "required group NAME (MAP) { repeated group key_value {
                     required binary key (STRING);
                     required int64 value (INTEGER(64, false)); } }",
            ),
            _ => (
                ParquetColumn::Text { values: Vec::new(), present: Vec::new() },
                "optional binary NAME (STRING);",
            ),
        }
    }

    /// Appends a cell.
    fn push(&mut self, cell: FlowCell<'_>) {
        match (self, cell) {
            (ParquetColumn::Text { values, present }, FlowCell::Text(text)) => {
                present.push(i16::from(text.is_some()));
                values.extend(text.as_deref().map(ByteArray::from));
            }
            (ParquetColumn::Number { values, present }, FlowCell::Number(number)) => {
                present.push(i16::from(number.is_some()));
                values.extend(number.map(|number| number as i64));
            }
            (
                ParquetColumn::Reasons { names, counts, present, repeated },
                FlowCell::Reasons(reasons),
            ) => {
                // A map without entries has one place, without a value.
                for place in 0..reasons.len().max(1) {
                    present.push(i16::from(!reasons.is_empty()));
                    repeated.push(i16::from(place > 0));
                }
                names.extend(reasons.keys().map(|&name| ByteArray::from(name)));
                counts.extend(reasons.values().map(|&count| count as i64));
            }
            // Each column gets cells of its own kind.
            _ => {}
        }
    }

    /// Writes the column to a row group, and empties it.
    fn write(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    ) -> Result<(), ParquetError> {
        match self {
            ParquetColumn::Text { values, present } => {
                write_texts(group, values, present, None)?;
                values.clear();
                present.clear();
            }
            ParquetColumn::Number { values, present } => {
                write_numbers(group, values, present, None)?;
                values.clear();
                present.clear();
            }
            ParquetColumn::Reasons { names, counts, present, repeated } => {
                write_texts(group, names, present, Some(repeated))?;
                write_numbers(group, counts, present, Some(repeated))?;
                names.clear();
                counts.clear();
                present.clear();
                repeated.clear();
            }
        }
        Ok(())
    }
}

fn write_texts(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    values: &[ByteArray],
    present: &[i16],
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.ok_or_else(no_column)?;
    column.typed::<ByteArrayType>().write_batch(values, Some(present), repeated)?;
    column.close()
}

fn write_numbers(
    group: &mut SerializedRowGroupWriter<'_, OutputFile>,
    values: &[i64],
    present: &[i16],
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.ok_or_else(no_column)?;
    column.typed::<Int64Type>().write_batch(values, Some(present), repeated)?;
    column.close()
}

fn no_column() -> ParquetError {
    ParquetError::General("the schema has too few columns".to_owned())
}

/// Converts an error of the Parquet library to an I/O error.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}
