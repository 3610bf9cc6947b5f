//! Tables for reports, which can be rendered as Markdown and as HTML.

use std::fmt::Write;

use super::escape::{Breakable, Escaped, markdown};

/// A table of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Number of leading columns that hold names; the others hold figures.
    pub names: usize,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows, each with a cell per column.
    pub rows: Vec<Vec<Cell>>,
    /// Index of the row to highlight on a page.
    pub main: Option<usize>,
    /// Class of the table in the style sheet of pages; empty for none.
    pub class: &'static str,
}

/// A column of a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub heading: String,
    /// Whether the column holds figures from the source with which a report compares its own, such
    /// as a paper.
    pub of_source: bool,
}

/// A cell of a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Text of the cell.
    pub text: String,
    /// A remark, such as the spread of a figure.
    pub note: Option<String>,
    /// Class of the cell in the style sheet of pages; empty for that of its column.
    pub class: &'static str,
    /// Length of a bar below the text of the cell on a page, in thousandths of its width.
    pub bar: Option<u16>,
}

impl Cell {
    /// Returns a cell without a remark.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Returns a cell with a bar that shows a share from 0 to 1.
    pub fn with_bar(text: impl Into<String>, share: f64) -> Self {
        Self { bar: Some((1000.0 * share.clamp(0.0, 1.0)).round() as u16), ..Self::new(text) }
    }

    /// Returns the text, and the remark in parentheses.
    pub fn joined(&self) -> String {
        match &self.note {
            Some(note) => format!("{} ({note})", self.text),
            None => self.text.clone(),
        }
    }
}

impl Table {
    /// Returns a table with a column of names, followed by columns of figures.
    pub fn new<const N: usize>(
        headings: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Self {
        let column = |heading: &str| Column { heading: heading.to_owned(), of_source: false };
        Self {
            names: 1,
            columns: headings.map(column).into(),
            rows: rows.into_iter().map(|row| row.map(Cell::new).into()).collect(),
            ..Self::default()
        }
    }

    /// Returns the table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for column in &self.columns {
            let source = if column.of_source { "source's " } else { "" };
            let _ = write!(text, "| {source}{} ", markdown(&column.heading));
        }
        text.push_str("|\n");
        for place in 0..self.columns.len() {
            text.push_str(if place < self.names { "|---" } else { "|---:" });
        }
        text.push_str("|\n");
        for row in &self.rows {
            for cell in row {
                let _ = write!(text, "| {} ", markdown(&cell.joined()));
            }
            text.push_str("|\n");
        }
        text
    }

    /// Returns the table as HTML. On a phone each row becomes a card, and each cell has its heading
    /// above it. If there are two columns of names, the first names a group of rows, and has a row
    /// of its own above them.
    pub(super) fn html(&self) -> String {
        let class = class_attribute(self.class);
        let mut text = format!("<div class=\"table\"><table{class}>\n<tr>");
        let headings: Vec<_> = (self.columns.iter())
            .map(|column| {
                let source = if column.of_source { "source’s " } else { "" };
                format!("{source}{}", Escaped(&column.heading))
            })
            .collect();
        let groups = usize::from(self.names == 2);
        for (place, heading) in headings.iter().enumerate().skip(groups) {
            let _ = write!(text, "<th{}>{heading}</th>", class_attribute(self.class_of(place)));
        }
        text.push_str("</tr>\n");
        for (index, row) in self.rows.iter().enumerate() {
            if let Some(group) = row.first().filter(|group| groups == 1 && !group.text.is_empty()) {
                let (columns, name) = (row.len() - 1, Breakable(&group.text));
                let _ = writeln!(
                    text,
                    "<tr class=\"group\"><td class=\"named\" colspan=\"{columns}\">{name}</td></tr>"
                );
            }
            text.push_str(if self.main == Some(index) { "<tr class=\"main\">" } else { "<tr>" });
            for (place, (cell, heading)) in row.iter().zip(&headings).enumerate().skip(groups) {
                let class = if cell.class.is_empty() { self.class_of(place) } else { cell.class };
                let _ = write!(text, "<td{}", class_attribute(class));
                if !heading.is_empty() {
                    let _ = write!(text, " data-heading=\"{heading}\"");
                }
                // Names may be wrapped behind their separators; figures may not.
                let _ = match place < self.names {
                    true => write!(text, ">{}", Breakable(&cell.text)),
                    false => write!(text, ">{}", Escaped(&cell.text)),
                };
                if let Some(note) = &cell.note {
                    let _ = write!(text, "<small>{}</small>", Escaped(note));
                }
                if let Some(bar) = cell.bar {
                    let width = f64::from(bar) / 10.0;
                    let _ = write!(text, "<i class=\"bar\" style=\"width:{width:.1}%\"></i>");
                }
                text.push_str("</td>");
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table></div>\n");
        text
    }

    fn class_of(&self, place: usize) -> &'static str {
        match self.columns.get(place) {
            Some(_) if place < self.names => "named",
            Some(column) if column.of_source => "muted",
            _ => "",
        }
    }
}

fn class_attribute(class: &str) -> String {
    match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        let mut table = Table::new(["name", "packets"], [["a".to_owned(), "5".to_owned()]]);
        table.rows[0][1] = Cell::with_bar("5", 0.25);
        assert!(table.html().contains(">5<i class=\"bar\" style=\"width:25.0%\"></i></td>"));
        assert!(!table.markdown().contains("bar"));
    }

    #[test]
    fn markup_is_escaped() {
        let table = Table::new(["file", "share"], [["a/b".to_owned(), "100.0 % <".to_owned()]]);
        let page = table.html();
        assert!(
            page.contains(">a/<wbr>b<wbr></td>") && page.contains(">100.0 % &lt;</td>"),
            "{page}"
        );
    }
}
