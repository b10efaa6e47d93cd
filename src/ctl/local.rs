//! `putexctl status --local`: the services of this host as they stand here.

use std::time::Duration;

use super::output::{Cell, Screen, Style, Surface};
use crate::dbus::{ServiceStatus, StoreStatus};
use crate::types::span::{date, rounded};

/// The table of services. What a service waits for, the reason why this host does not contend, and each remark are in lines of
/// their own.
pub(super) fn screen(services: &[ServiceStatus], store: Option<&StoreStatus>, surface: Surface) -> Screen {
    let mut screen = Screen::new(surface);
    let number = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    let row = |status: &ServiceStatus| {
        let style = if status.state == "active" { Style::Good } else { Style::Plain };
        [
            Cell::new(status.service.clone()),
            Cell::new(status.unit.clone()),
            Cell::styled(status.state.clone(), style),
            Cell::new(status.holder.clone()),
            Cell::new(number(status.revision)),
            Cell::new(number(status.token)),
        ]
        .to_vec()
    };
    let rows: Vec<Vec<Cell>> = services.iter().map(row).collect();
    let header = ["SERVICE", "UNIT", "STATE", "HOLDER", "REVISION", "TOKEN"];
    screen.table_with(&header, &rows, 0, |screen, place| below(screen, &services[place]));
    if let Some(store) = store {
        screen.sentence("", &store_line(store), if store.trouble().is_some() { Style::Bad } else { Style::Plain });
    }
    screen
}

fn below(screen: &mut Screen, status: &ServiceStatus) {
    let mut line = |text: &str, style| {
        screen.sentence("  ", text, style);
    };
    if !status.waits.is_empty() {
        line(&status.waits, Style::Plain);
    }
    if let Some(hindrance) = abstains(status) {
        line(&format!("does not contend: {hindrance}"), Style::Notable);
    }
    for alarm in &status.alarms {
        line(&format!("alarm: {}", alarm.in_words()), Style::Bad);
    }
    for remark in &status.remarks {
        line(&format!("warning: {remark}"), Style::Notable);
    }
}

/// Why this host does not contend for the lock; `None` if it does, and in states such as that of a holder, which contends
/// for nothing.
pub(super) fn abstains(status: &ServiceStatus) -> Option<&str> {
    let contends = status.hindrance.is_empty() || !["standby", "no-store", "broken"].contains(&status.state.as_str());
    (!contends).then_some(&*status.hindrance)
}

/// The store in one line.
pub(super) fn store_line(store: &StoreStatus) -> String {
    let now = store.trouble().unwrap_or_else(|| format!("the store ({}) answers", store.store));
    format!("{now}; {}", silences(store))
}

/// How often the store was silent, and for how long at most.
pub(super) fn silences(store: &StoreStatus) -> String {
    let seconds = |milliseconds: u64| rounded(Duration::from_millis(milliseconds));
    let times = if store.silences == 1 { "once" } else { &format!("{} times", store.silences) };
    match store.silences {
        0 => "since putexd started it was never silent for a second".to_owned(),
        _ => format!(
            "since putexd started it was silent {times} for a second or more, the longest for {} from {} on",
            seconds(store.longest_ms),
            date(store.longest_began)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_line_tells_of_silences() {
        let mut store = StoreStatus { store: "directory at /srv/putex".to_owned(), ..StoreStatus::default() };
        let never =
            "the store (directory at /srv/putex) answers; since putexd started it was never silent for a second";
        assert_eq!(store_line(&store), never);
        (store.silent_ms, store.silences, store.longest_ms, store.longest_began) = (1234, 2, 7300, 1_763_787_182);
        let silent = "see that the store (directory at /srv/putex) is up, and that this host reaches it: it has given no \
                      answer for 1.2s; since putexd started it was silent 2 times for a second or more, the longest for \
                      7.3s from 2025-11-22T04:53:02Z on";
        assert_eq!(store_line(&store), silent);
    }

    #[test]
    fn the_table_lines_up_and_names_the_hindrance() {
        let status = ServiceStatus {
            service: "db".to_owned(),
            unit: "database.service".to_owned(),
            key: "db".to_owned(),
            state: "standby".to_owned(),
            holder: "h1".to_owned(),
            revision: 7,
            token: 0,
            hindrance: "this host is drained".to_owned(),
            waits: "h1 holds the lock".to_owned(),
            remarks: vec!["Its stop is not proven.".to_owned()],
            ..ServiceStatus::default()
        };
        let expected = "SERVICE  UNIT              STATE    HOLDER  REVISION  TOKEN\n\
                        db       database.service  standby  h1      7         -\n  \
                        h1 holds the lock\n  \
                        does not contend: this host is drained\n  \
                        warning: Its stop is not proven.\n";
        assert_eq!(screen(&[status], None, Surface::PIPE).as_text(), expected);
    }
}
