//! Formats numbers, and text from captures, for reports.

/// The text for a value that does not exist, such as a quotient whose divisor is 0.
pub const NOTHING: &str = "-";

/// Formats the quotient `over / under` with this number of decimal places.
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

/// Formats a number with `digits` digits after the point, and commas between thousands.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let whole = whole.parse().map_or_else(|_| whole.to_owned(), grouped);
    let sign =
        if value < 0.0 && text.contains(|digit| ('1'..='9').contains(&digit)) { "-" } else { "" };
    format!("{sign}{whole}{fraction}")
}

/// Formats a number like [`number`], with at most `most` digits after the decimal point and without
/// trailing zeros. `most` is at least 1.
pub fn shortest(value: f64, most: usize) -> String {
    number(value, most).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a factor: `1.50x`, and `0.050x` below a tenth.
pub fn factor(factor: f64) -> String {
    format!("{}x", number(factor, factor_digits(factor)))
}

/// Returns the number of digits after the decimal point with which [`factor`] formats this factor:
/// 2, or 3 below a tenth.
pub fn factor_digits(factor: f64) -> usize {
    if factor.abs() < 0.1 { 3 } else { 2 }
}

/// Formats a range of numbers.
pub fn range(low: f64, high: f64, digits: usize) -> String {
    format!("{}-{}", number(low, digits), number(high, digits))
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
        assert_eq!(
            (number(1_234_567.0, 0), number(-1234.56, 1), number(-0.04, 1)),
            ("1,234,567".into(), "-1,234.6".into(), "0.0".into())
        );
        assert_eq!(
            (shortest(108.7, 3), shortest(3061.05, 3), shortest(89.0, 3)),
            ("108.7".into(), "3,061.05".into(), "89".into())
        );
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
