//! Formats numbers and names for reports.

/// The text for a quotient whose divisor is 0.
pub(crate) const NOTHING: &str = "-";

/// Formats a quotient with this number of decimal places.
pub fn average(over: u64, under: u64, places: usize) -> String {
    if under == 0 { NOTHING.to_owned() } else { format!("{:.places$}", ratio(over, under)) }
}

/// Returns a quotient; 0 if the divisor is 0.
pub fn ratio(over: u64, under: u64) -> f64 {
    if under == 0 { 0.0 } else { over as f64 / under as f64 }
}

/// Formats a share in percent.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { NOTHING.to_owned() } else { format!("{:.1} %", 100.0 * ratio(part, whole)) }
}

/// Formats a number with commas between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Makes control characters visible in text from a capture or a file system.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|character| {
            if character.is_control() {
                character.escape_default().collect::<Vec<_>>()
            } else {
                vec![character]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_quotient_without_divisor_is_a_dash() {
        assert_eq!((average(7, 2, 1), average(7, 0, 1)), ("3.5".to_owned(), "-".to_owned()));
        assert_eq!((percent(1, 8), percent(0, 0)), ("12.5 %".to_owned(), "-".to_owned()));
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
