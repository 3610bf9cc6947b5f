//! A table of text fields, displayed aligned or in Markdown.

/// Rows of fields below a head.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Table { head: head.iter().map(|&field| field.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If its number of fields differs from the head's.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.head.len(), "{row:?}");
        self.rows.push(row);
    }

    /// Returns aligned text: the first column is left-aligned, the others are right-aligned.
    pub fn to_text(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<_> = (0..self.head.len())
            .map(|column| lines().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let fields = row.iter().zip(&widths).enumerate();
            let fields = fields.map(|(number, (field, &width))| {
                if number == 0 { format!("{field:width$}") } else { format!("{field:>width$}") }
            });
            fields.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        lines().map(line).collect()
    }

    pub fn to_markdown(&self) -> String {
        let line = |fields: &Vec<String>| format!("| {} |\n", fields.join(" | "));
        let rule = "|---".repeat(self.head.len()) + "|\n";
        line(&self.head) + &rule + &self.rows.iter().map(line).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_aligned_or_between_bars() {
        let mut table = Table::new(&["row", "ns"]);
        table.push(vec!["a".to_owned(), "10.0".to_owned()]);
        table.push(vec!["longer".to_owned(), "5.0".to_owned()]);
        assert_eq!(table.to_text(), "row       ns\na       10.0\nlonger   5.0\n");
        assert_eq!(
            table.to_markdown(),
            "| row | ns |\n|---|---|\n| a | 10.0 |\n| longer | 5.0 |\n"
        );
    }
}
