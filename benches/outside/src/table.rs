//! Tables of figures by row and profile, as tab-separated text for files or aligned for display.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Figures, with one column per profile, in the order of the rows.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    /// Adds a column.
    ///
    /// # Errors
    /// If its rows differ from those of the other columns.
    pub fn push(&mut self, column: &str, figures: Vec<(String, f64)>) -> Result<()> {
        if self.columns.is_empty() {
            self.rows = figures.iter().map(|(row, _)| (row.clone(), Vec::new())).collect();
        }
        let same = self.rows.iter().map(|(row, _)| row).eq(figures.iter().map(|(row, _)| row));
        ensure!(same, "{column} has other rows than {}", self.columns.join(", "));
        self.columns.push(column.to_owned());
        for ((_, row), (_, figure)) in self.rows.iter_mut().zip(figures) {
            row.push(figure);
        }
        Ok(())
    }

    /// Reads a file in the format of [`Table::to_tsv`]. Lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// The line that cannot be parsed.
    pub fn read(path: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let head = lines.next().with_context(|| format!("{}: no first line", path.display()))?;
        let columns: Vec<_> = head.split('\t').skip(1).map(str::to_owned).collect();
        let row = |line: &str| {
            let mut fields = line.split('\t');
            let name = fields.next().unwrap_or_default().to_owned();
            let figures = fields
                .map(str::parse)
                .collect::<Result<Vec<f64>, _>>()
                .with_context(|| format!("{}: {line}", path.display()))?;
            ensure!(
                figures.len() == columns.len(),
                "{}: {line}: {} figures for {} columns",
                path.display(),
                figures.len(),
                columns.len()
            );
            Ok((name, figures))
        };
        Ok(Table { rows: lines.map(row).collect::<Result<_>>()?, columns })
    }

    /// Returns one line per row with fields separated by tabs, after a line with the names of the
    /// columns.
    pub fn to_tsv(&self) -> String {
        let mut text = format!("row\t{}\n", self.columns.join("\t"));
        for (name, figures) in &self.rows {
            let figures: Vec<_> = figures.iter().map(|figure| format!("{figure:.1}")).collect();
            writeln!(text, "{name}\t{}", figures.join("\t")).expect("a string takes all");
        }
        text
    }

    /// Returns the table as aligned text, with the ratio of each later column to the first.
    pub fn to_text(&self) -> String {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = format!("{:width$}", "");
        for (number, column) in self.columns.iter().enumerate() {
            write!(text, "  {column:>9}{}", if number == 0 { "" } else { "   ratio" })
                .expect("a string takes all");
        }
        for (name, figures) in &self.rows {
            write!(text, "\n{name:width$}").expect("a string takes all");
            for (number, figure) in figures.iter().enumerate() {
                write!(text, "  {figure:>9.1}").expect("a string takes all");
                if number != 0 {
                    write!(text, "  {:>5.2}x", figure / figures[0]).expect("a string takes all");
                }
            }
        }
        text.push('\n');
        text
    }

    /// Returns the table in Markdown, with the ratio of each later column to the first.
    pub fn to_markdown(&self) -> String {
        let mut head = vec![String::new()];
        for (number, column) in self.columns.iter().enumerate() {
            head.push(column.clone());
            head.extend((number != 0).then(|| "ratio".to_owned()));
        }
        let line = |fields: &[String]| format!("| {} |\n", fields.join(" | "));
        let mut text = line(&head) + &"|---".repeat(head.len()) + "|\n";
        for (name, figures) in &self.rows {
            let mut fields = vec![name.clone()];
            for (number, figure) in figures.iter().enumerate() {
                fields.push(format!("{figure:.1}"));
                fields.extend((number != 0).then(|| format!("{:.2}x", figure / figures[0])));
            }
            text += &line(&fields);
        }
        text
    }

    /// Returns one line for each figure of `now` that exceeds `factor` times the figure of `self`
    /// in the same row and column.
    ///
    /// # Errors
    /// If `self` lacks a row or column of `now`, or `now` lacks a row of `self`.
    pub fn exceeded(&self, now: &Table, factor: f64) -> Result<Vec<String>> {
        let known: BTreeMap<_, _> =
            self.rows.iter().map(|(name, figures)| (name, figures)).collect();
        ensure!(
            known.len() == now.rows.len(),
            "{} rows are known, and there are {}",
            known.len(),
            now.rows.len()
        );
        let mut lines = Vec::new();
        for (number, column) in now.columns.iter().enumerate() {
            let place = self.columns.iter().position(|known| known == column);
            let place = place.with_context(|| format!("nothing is known of {column}"))?;
            for (name, figures) in &now.rows {
                let before =
                    known.get(name).with_context(|| format!("nothing is known of {name}"))?[place];
                let figure = figures[number];
                if figure > before * factor {
                    lines.push(format!(
                        "{name}, {column}: {figure:.1}, {:.1} % more than {before:.1}",
                        100.0 * (figure / before - 1.0)
                    ));
                }
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(figures: [f64; 2]) -> Table {
        let mut table = Table::default();
        let rows = ["a", "b"].map(str::to_owned);
        table.push("default", rows.into_iter().zip(figures).collect()).expect("the first");
        table
    }

    #[test]
    fn what_grew_is_named_and_what_shrank_is_not() {
        let lines =
            table([100.0, 200.0]).exceeded(&table([106.0, 150.0]), 1.05).expect("the same rows");
        assert_eq!(lines, ["a, default: 106.0, 6.0 % more than 100.0"]);
        assert!(
            table([100.0, 200.0])
                .exceeded(&table([104.0, 200.0]), 1.05)
                .expect("the same rows")
                .is_empty()
        );
    }

    #[test]
    fn other_rows_are_an_error() {
        let mut other = Table::default();
        other
            .push("default", vec![("a".to_owned(), 1.0), ("c".to_owned(), 1.0)])
            .expect("the first");
        assert!(table([1.0, 1.0]).exceeded(&other, 1.05).is_err());
        assert!(table([1.0, 1.0]).push("other", vec![("a".to_owned(), 1.0)]).is_err());
    }

    #[test]
    fn markdown_has_a_ratio_for_each_later_column() {
        let mut table = table([4.0, 200.0]);
        table
            .push("off", vec![("a".to_owned(), 5.0), ("b".to_owned(), 100.0)])
            .expect("the same rows");
        let lines = [
            "|  | default | off | ratio |",
            "|---|---|---|---|",
            "| a | 4.0 | 5.0 | 1.25x |",
            "| b | 200.0 | 100.0 | 0.50x |",
            "",
        ];
        assert_eq!(table.to_markdown(), lines.join("\n"));
    }

    #[test]
    fn comes_back_from_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let table = table([1.5, 200.0]);
        std::fs::write(file.path(), format!("# a word\n{}", table.to_tsv())).expect("written");
        assert_eq!(Table::read(file.path()).expect("read"), table);
    }
}
