//! Words and colours that several screens have alike.

use super::output::Style;

/// How a state of a service is shown.
pub(super) fn style_of(state: &str) -> Style {
    match state {
        "running" => Style::Good,
        "starting" | "stopping" | "stopped" | "paused" | "held" | "observed" => Style::Notable,
        _ => Style::Bad,
    }
}

/// How long ago something was, in its largest unit; times are in seconds since 1970.
pub(super) fn ago(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then);
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}min ago", seconds / 60),
        3600..172_800 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}
