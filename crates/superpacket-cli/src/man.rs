//! Makes man pages in roff from the help texts of commands.

use std::io;

use clap::Command;
use clap_mangen::Man;

/// Returns the man page of a command. The help text after the options becomes sections that are
/// usual in man pages: examples, notes, exit status.
pub(crate) fn page(command: Command, title: Option<String>) -> io::Result<String> {
    let after = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let (has_subcommands, has_version) =
        (command.has_subcommands(), command.get_version().is_some());
    let man = match title {
        None => Man::new(command),
        Some(title) => Man::new(command).title(title),
    };
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text.push_str(&sections(&after));
    if has_version {
        let mut version = Vec::new();
        man.render_version_section(&mut version)?;
        text.push_str(&String::from_utf8_lossy(&version));
    }
    Ok(text)
}

/// Converts the help text after the options to sections of a man page.
fn sections(after: &str) -> String {
    let (mut examples, mut notes, mut status) = (String::new(), String::new(), String::new());
    for paragraph in
        after.split("\n\n").map(str::trim_end).filter(|paragraph| !paragraph.is_empty())
    {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        if matches!(first, "Example:" | "Examples:") {
            // Examples are printed as typed, without filling lines (`.nf`).
            let lines = rest.lines().map(|line| escaped(line.trim_start()) + "\n");
            examples.push_str(&format!(".nf\n{}.fi\n", lines.collect::<String>()));
        } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            status.push_str(&format!("{}\n", escaped(codes)));
        } else {
            notes.push_str(&format!(".PP\n{}\n", escaped(paragraph)));
        }
    }
    let section = |name: &str, text: String| {
        if text.is_empty() { text } else { format!(".SH {name}\n{text}") }
    };
    section("EXAMPLES", examples) + &section("NOTES", notes) + &section("\"EXIT STATUS\"", status)
}

/// Escapes text so that roff prints it unchanged.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    // In roff, a line that begins with a period is a request to the formatter.
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_after_the_options_becomes_sections() {
        let after = "Examples:\n  a --b | jq '.c'\n  .x \\n\n\nA note-worthy thing.\n\nAnother.\n\nExit codes: 0 done, 2 bad usage.";
        let expected = ".SH EXAMPLES\n.nf\na \\-\\-b | jq \\(aq.c\\(aq\n\\&.x \\en\n.fi\n.SH NOTES\n.PP\nA note\\-worthy thing.\n.PP\nAnother.\n\
                        .SH \"EXIT STATUS\"\n0 done, 2 bad usage.\n";
        assert_eq!(sections(after), expected);
        assert_eq!(sections(""), "");
    }
}
