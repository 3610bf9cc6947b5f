//! Self-contained HTML pages, without scripts, fonts or pictures from elsewhere.

use std::fmt::{self, Write};

use super::chart::{Chart, NARROW, WIDE};
use super::escape::{Breakable, Escaped};
use super::table::Table;
use crate::commands::error::Error;

/// The style sheet of all pages.
pub const CSS: &str = concat!(include_str!("colours.css"), include_str!("page.css"));

/// A colour that tells the two series of a chart apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Grey: the first series, such as packets before aggregation.
    Before,
    /// The highlight: the second series, such as packets after aggregation.
    After,
}

/// An HTML page that is being written. All text is escaped.
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a page with this title. `command` is named in the title of the window.
    pub fn new(title: &str, command: &str) -> Self {
        let mut page = Self { text: String::with_capacity(1 << 17) };
        page.add(format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{0}: superpacket {command}</title>\n<style>\n{1}</style>\n</head>\n<body>\n<main>\n<h1 class=\"name\">{2}</h1>",
            Escaped(title),
            CSS,
            Breakable(title),
        ));
        page
    }

    /// Ends the page, and returns it.
    pub fn finish(mut self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        self.add(format_args!(
            "<p class=\"muted\">superpacket {version}</p>\n</main>\n</body>\n</html>"
        ));
        self.text
    }

    fn add(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Writes the heading of a section.
    pub fn section(&mut self, text: &str) {
        let id = text.replace(' ', "-");
        self.add(format_args!("<h2 id=\"{}\">{}</h2>", Escaped(&id), Escaped(text)));
    }

    /// Writes the heading of a part of a section.
    pub fn subsection(&mut self, text: &str) {
        self.add(format_args!("<h3>{}</h3>", Escaped(text)));
    }

    /// Writes a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.add(format_args!("<p class=\"name\">{}</p>", Escaped(text)));
    }

    /// Writes a paragraph in a less prominent colour.
    pub fn remark(&mut self, text: &str) {
        self.add(format_args!("<p class=\"muted name\">{}</p>", Escaped(text)));
    }

    /// Writes a paragraph on a failure.
    pub fn failure(&mut self, what: &str, why: &str) {
        self.add(format_args!(
            "<p class=\"name\"><span class=\"missed\">{}</span>: {}</p>",
            Escaped(what),
            Escaped(why)
        ));
    }

    /// Writes a list; nothing if it is empty.
    pub fn list<'a>(&mut self, items: impl IntoIterator<Item = &'a String>) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_some() {
            self.add(format_args!("<ul>"));
            items.for_each(|item| {
                self.add(format_args!("<li class=\"name\">{}</li>", Breakable(item)));
            });
            self.add(format_args!("</ul>"));
        }
    }

    /// Writes a row of prominent figures, each with a caption below.
    pub fn tiles(&mut self, tiles: impl IntoIterator<Item = (String, String)>) {
        self.add(format_args!("<div class=\"tiles\">"));
        for (figure, caption) in tiles {
            self.add(format_args!(
                "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                Escaped(&figure),
                Escaped(&caption)
            ));
        }
        self.add(format_args!("</div>"));
    }

    /// Writes a table.
    pub fn table(&mut self, table: &Table) {
        self.text.push_str(&table.html());
    }

    /// Draws a chart below its caption and a legend of its colours. It is drawn in two widths, for
    /// a wide screen and for a phone; the page shows the one that fits.
    ///
    /// # Errors
    /// [`Error::Plot`] if it cannot be drawn.
    pub fn figure(
        &mut self,
        caption: &str,
        colours: &[(Colour, &str)],
        chart: &impl Chart,
    ) -> Result<(), Error> {
        let mut caption = Escaped(caption).to_string();
        for (colour, meaning) in colours {
            let class = match colour {
                Colour::Before => "before",
                Colour::After => "after",
            };
            let meaning = Escaped(meaning);
            caption.push_str(&format!("<span class=\"key {class}\"></span>{meaning}"));
        }
        self.add(format_args!(
            "<figure><figcaption>{caption}</figcaption><div class=\"wide\">{}</div><div class=\"narrow\">{}</div></figure>",
            chart.draw(WIDE)?,
            chart.draw(NARROW)?
        ));
        Ok(())
    }

    /// Writes a section that is folded until the reader opens it.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn details(
        &mut self,
        summary: &str,
        body: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.add(format_args!("<details>\n<summary>{}</summary>", Breakable(summary)));
        body(self)?;
        self.add(format_args!("</details>"));
        Ok(())
    }
}
