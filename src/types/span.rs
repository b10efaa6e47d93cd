//! Spans of time as people write them: "3s", "500ms" or "1min 30s".

use std::time::Duration;

use jiff::fmt::friendly::SpanParser;

/// Reads a span of time.
///
/// jiff reads more than is good for a configuration ("1 hour ago", "01:30:00", "3 days, 2 hours"): only numbers with
/// units up to hours are let through, which mean the same length at any date.
pub fn parse(text: &str) -> Result<Duration, String> {
    const REMEDY: &str = "write numbers with units, such as \"3s\", \"500ms\" or \"1min 30s\"";
    if text.trim_start().starts_with('-') || text.contains("ago") {
        return Err(format!("the span of time {text:?} is negative: {REMEDY}"));
    }
    if !text.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, ' ' | '.' | 'µ')) {
        return Err(format!("{text:?} is not a span of time: {REMEDY}"));
    }
    if !text.chars().any(char::is_alphabetic) {
        return Err(format!("the span of time {text:?} has no unit: {REMEDY}"));
    }
    SpanParser::new()
        .parse_unsigned_duration(text)
        .map_err(|_| format!("{text:?} is not a span of time in hours or smaller units: {REMEDY}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_strict() {
        for (text, expected) in
            [("3s", 3000), ("500ms", 500), ("1min 30s", 90_000), ("1.5s", 1500), ("2h", 7_200_000), ("2 min", 120_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for text in ["", "3", "-3s", "3s ago", "1d", "1 month", "01:30:00", "1h, 2min", "+3s", "P1D", "PT3S", "s", "∞"]
        {
            assert!(parse(text).is_err(), "{text:?} must be refused");
        }
    }
}
