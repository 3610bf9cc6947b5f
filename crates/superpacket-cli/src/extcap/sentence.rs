//! The lines that an extcap program prints: a keyword, and fields in braces.

/// Returns a line with these fields: `keyword {name=value}{name=value}`.
pub(super) fn sentence(keyword: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("{keyword} ");
    for (name, value) in fields {
        text.push_str(&format!("{{{name}={}}}", shown(value)));
    }
    text.push('\n');
    text
}

/// Returns whether a value can be written in braces: it must not contain a closing brace.
pub(super) fn fits(value: &str) -> bool {
    !value.contains(|character: char| matches!(character, '{' | '}') || character.is_control())
}

/// Returns a value in which the characters that cannot be written in braces are replaced.
fn shown(value: &str) -> String {
    let replaced = value.chars().map(|character| match character {
        '{' => '(',
        '}' => ')',
        character if character.is_control() => ' ',
        character => character,
    });
    replaced.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ends_its_sentence() {
        let line = sentence("value", &[("arg", "0"), ("display", "a {b}\nc")]);
        assert_eq!(line, "value {arg=0}{display=a (b) c}\n");
        assert!(fits("eth0.5@x y") && !fits("a}") && !fits("a\nb"));
    }
}
