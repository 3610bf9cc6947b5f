//! Pages that need nothing else: no script, no font, no picture from elsewhere.

use std::fmt::{self, Write};

use crate::error::Error;
use crate::figures::printable;

/// How pages look.
pub const CSS: &str = include_str!("page.css");

/// Renders a page of this title, by a command: `body` writes what is in it.
///
/// # Errors
/// [`Error::Plot`] if the body's plots, or the page, could not be made.
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

/// What can stop the writing of the page.
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

/// Text from outside, made harmless: control characters visible, markup escaped.
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

/// A name from outside, made harmless, that may be broken behind its separators.
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

/// Figures, each with its words below.
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

/// A table; the row numbered `main` stands out. On a phone each row is a card of its own, and each
/// cell has its heading above it.
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
        // The first is a name; figures stay whole.
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
