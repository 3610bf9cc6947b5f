//! Escapes text from captures and file names for HTML pages and Markdown documents.

use std::fmt::{self, Write};

use super::number::printable;

/// Text from a capture or a file system, with control characters made visible and markup escaped.
pub(super) struct Escaped<'a>(pub &'a str);

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
pub(super) struct Breakable<'a>(pub &'a str);

impl fmt::Display for Breakable<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(['/', '.', ':', '_', '-', ',']) {
            write!(formatter, "{}<wbr>", Escaped(part))?;
        }
        Ok(())
    }
}

/// Escapes text so that it contains no cell border or markup of Markdown.
pub fn markdown(text: &str) -> String {
    printable(text).replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(Escaped("<b>&\"'\u{1b}").to_string(), "&lt;b&gt;&amp;&quot;&#39;\\u{1b}");
        assert_eq!(Breakable("a/<b>").to_string(), "a/<wbr>&lt;b&gt;<wbr>");
    }
}
