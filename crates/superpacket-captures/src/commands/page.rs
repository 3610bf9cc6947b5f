//! Self-contained HTML pages, without scripts, fonts or pictures from elsewhere.

use std::fmt::{self, Write};

use crate::commands::error::Error;
use crate::commands::figures::printable;

/// The style sheet of all pages.
pub const CSS: &str = include_str!("page.css");

/// Renders a page with this title. `command` is named in the title; `body` writes the content.
///
/// # Errors
/// [`Error::Plot`] if a plot or the page could not be written.
pub fn render(
    title: &str,
    command: &str,
    body: impl FnOnce(&mut String) -> Result<(), Stop>,
) -> Result<String, Error> {
    let mut page = String::with_capacity(1 << 17);
    let written = head(title, command, &mut page)
        .and_then(|()| body(&mut page))
        .and_then(|()| foot(&mut page));
    match written {
        Ok(()) => Ok(page),
        Err(Stop::Plot(failure)) => Err(failure),
        Err(Stop::Format) => Err(Error::Plot("the page could not be written".to_owned())),
    }
}

/// An error while a page is written.
pub enum Stop {
    /// A plot could not be drawn.
    Plot(Error),
    /// The text could not be written.
    Format,
}

impl From<fmt::Error> for Stop {
    fn from(_: fmt::Error) -> Self {
        Stop::Format
    }
}

impl From<Error> for Stop {
    fn from(failure: Error) -> Self {
        Stop::Plot(failure)
    }
}

/// Text from a capture or a file system, with control characters made visible and markup escaped.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => formatter.write_str("&amp;")?,
                '<' => formatter.write_str("&lt;")?,
                '>' => formatter.write_str("&gt;")?,
                '"' => formatter.write_str("&quot;")?,
                '\'' => formatter.write_str("&#39;")?,
                other => formatter.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A name that is escaped like [`Escaped`] and may be wrapped behind its separators.
pub struct Breakable<'a>(pub &'a str);

impl fmt::Display for Breakable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(['/', '.', ':', '_', '-', ',']) {
            write!(formatter, "{}<wbr>", Escaped(part))?;
        }
        Ok(())
    }
}

fn head(title: &str, command: &str, page: &mut String) -> Result<(), Stop> {
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{0}: superpacket {command}</title>\n<style>\n{1}</style>\n</head>\n<body>\n<main>\n<h1 class=\"name\">{2}</h1>\n",
        Escaped(title),
        CSS,
        Breakable(title),
    )?;
    Ok(())
}

fn foot(page: &mut String) -> Result<(), Stop> {
    write!(
        page,
        "<p class=\"muted\">superpacket {}</p>\n</main>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )?;
    Ok(())
}

/// Writes figures, each with a caption below.
pub fn tiles(
    tiles: impl IntoIterator<Item = (String, String)>,
    page: &mut String,
) -> Result<(), Stop> {
    writeln!(page, "<div class=\"tiles\">")?;
    for (figure, words) in tiles {
        writeln!(page, "<div class=\"tile\"><b>{figure}</b><span>{words}</span></div>")?;
    }
    writeln!(page, "</div>")?;
    Ok(())
}

/// Writes a table; the row with index `main` is highlighted. On a phone each row becomes a card,
/// and each cell has its heading above it.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    main: Option<usize>,
    page: &mut String,
) -> Result<(), Stop> {
    page.push_str("<div class=\"table\"><table>\n<tr>");
    for cell in header {
        write!(page, "<th>{cell}</th>")?;
    }
    page.push_str("</tr>\n");
    for (index, row) in rows.into_iter().enumerate() {
        page.push_str(if main == Some(index) { "<tr class=\"main\">" } else { "<tr>" });
        // The first cell is a name, which may be wrapped; figures may not.
        for (column, (heading, cell)) in header.iter().zip(row).enumerate() {
            write!(page, "<td data-heading=\"{heading}\">")?;
            match column {
                0 => write!(page, "{}</td>", Breakable(&cell))?,
                _ => write!(page, "{}</td>", Escaped(&cell))?,
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(Escaped("<b>&\"'\u{1b}").to_string(), "&lt;b&gt;&amp;&quot;&#39;\\u{1b}");
        assert_eq!(Breakable("a/<b>").to_string(), "a/<wbr>&lt;b&gt;<wbr>");
        let mut page = String::new();
        assert!(
            table(["file", "share"], [["a/b".to_owned(), "100.0 % <".to_owned()]], None, &mut page)
                .is_ok()
        );
        assert!(
            page.contains(">a/<wbr>b<wbr></td>") && page.contains(">100.0 % &lt;</td>"),
            "{page}"
        );
    }
}
