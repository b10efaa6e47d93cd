//! Hints for names that nobody knows.

use crate::config::similar;

/// How many names a hint has at most.
const HINTED: usize = 3;

/// `; did you mean db or dbs?` for a name that is similar to some of `known`; empty if none is similar.
pub(super) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near: Vec<&str> = similar(name, known).into_iter().take(HINTED).collect();
    match near.split_last() {
        None => String::new(),
        Some((only, [])) => format!("; did you mean {only}?"),
        Some((last, others)) => format!("; did you mean {} or {last}?", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_hinted_at_the_nearest_first() {
        let known = ["db", "dbs", "mail", "web-1", "web-2"];
        let hint = |name| hint(name, known.into_iter());
        assert_eq!(hint("dbs2"), "; did you mean dbs?");
        assert_eq!(hint("web1"), "; did you mean web-1?");
        assert_eq!(hint("wbe-3"), "");
        assert_eq!(hint("web-3"), "; did you mean web-1 or web-2?");
        assert_eq!(hint("Mial"), "; did you mean mail?");
        assert_eq!(hint("nosuch"), "");
    }
}
