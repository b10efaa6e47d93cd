//! Spans of time as people write them, "3s", "500ms" or "1min 30s", and text for them.

use std::time::Duration;

use jiff::fmt::friendly::SpanParser;

/// Text for a span: `0.3s`, `14.8s`, `48s`, `3min 20s`, `2h 5min`. A span that is not zero is `0.1s` at least.
pub fn rounded(span: Duration) -> String {
    if span.is_zero() {
        return "0s".to_owned();
    }
    let seconds = span.as_secs_f64().max(0.1);
    if seconds < 19.95 {
        return format!("{seconds:.1}s");
    }
    let whole = span.as_secs() + u64::from(span.subsec_millis() >= 500);
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        _ if whole < 120 => format!("{whole}s"),
        (0, minutes, 0) => format!("{minutes}min"),
        (0, minutes, seconds) => format!("{minutes}min {seconds}s"),
        (hours, 0, _) => format!("{hours}h"),
        (hours, minutes, _) => format!("{hours}h {minutes}min"),
    }
}

/// A span in whole milliseconds, or the largest number where it has more.
pub fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Text for a time in seconds since 1970: `2026-11-22 07:49:47 UTC`.
pub fn date(seconds: u64) -> String {
    let date = jiff::Timestamp::from_second(seconds.try_into().unwrap_or(i64::MAX));
    date.map_or_else(
        |_| "an unknown time".to_owned(),
        |date| date.strftime("%F %T UTC").to_string(),
    )
}

/// Reads a span of time.
///
/// jiff reads more than is good for a configuration ("1 hour ago", "01:30:00", "3 days, 2 hours"). Only numbers with units up to
/// hours are let through, because these mean the same length at any date.
pub fn parse(text: &str) -> Result<Duration, String> {
    const REMEDY: &str = "write numbers with units, such as \"3s\", \"500ms\" or \"1min 30s\"";
    if text.trim_start().starts_with('-') || text.contains("ago") {
        return Err(format!("the span of time {text:?} is negative: {REMEDY}"));
    }
    if !text
        .chars()
        .all(|character| character.is_ascii_alphanumeric() || matches!(character, ' ' | '.' | 'µ'))
    {
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
    fn spans_are_rounded_for_people() {
        let spans = [
            (8_966, "9.0s"),
            (0, "0s"),
            (3, "0.1s"),
            (14_849, "14.8s"),
            (48_400, "48s"),
            (19_960, "20s"),
            (119_700, "2min"),
            (90_000, "90s"),
            (200_000, "3min 20s"),
            (7_500_000, "2h 5min"),
            (3_600_000, "1h"),
        ];
        for (milliseconds, text) in spans {
            assert_eq!(rounded(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn lengths_are_strict() {
        for (text, expected) in [
            ("3s", 3000),
            ("500ms", 500),
            ("1min 30s", 90_000),
            ("1.5s", 1500),
            ("2h", 7_200_000),
            ("2 min", 120_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for text in [
            "", "3", "-3s", "3s ago", "1d", "1 month", "01:30:00", "1h, 2min", "+3s", "P1D",
            "PT3S", "s", "∞",
        ] {
            assert!(parse(text).is_err(), "{text:?} must be refused");
        }
    }
}
