//! Names of ports, such as `left` in `left=packet:eth0`.

use super::PortKind;

/// Maximum length of a name in characters.
const MAX_NAME_LENGTH: usize = 32;

/// Words that cannot be names of ports, since they have another meaning in commands that also take
/// a port's name.
const RESERVED: [&str; 9] = ["all", "any", "auto", "default", "dev", "help", "none", "off", "on"];

/// Splits a port string into the name and the rest. The name is the text before the first `=`, if
/// that comes before the colon after the kind. Options may also contain `=`, but follow the colon.
pub(super) fn split(text: &str) -> (Option<&str>, &str) {
    let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
    match kind.split_once('=') {
        Some((name, _)) => (Some(name), &text[name.len() + 1..]),
        None => (None, text),
    }
}

/// Checks whether a port may have this name. The error is a phrase that continues a sentence after
/// the name.
pub(super) fn check(name: &str) -> Result<(), String> {
    let is_allowed =
        |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if name.is_empty() || name.chars().count() > MAX_NAME_LENGTH || !name.chars().all(is_allowed) {
        return Err(format!(
            "is not 1 to {MAX_NAME_LENGTH} letters (a to z, A to Z), digits, \"-\", \"_\" and \".\""
        ));
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("does not begin with a letter (a to z, A to Z)".into());
    }
    if RESERVED.contains(&name) {
        return Err(format!("is a word of commands, as are {}", RESERVED.join(", ")));
    }
    match PortKind::all().iter().copied().find(|kind| kind.name() == name) {
        Some(_) => Err("is a kind of port".into()),
        None => Ok(()),
    }
}
