//! Hints for names that nobody knows.

/// How many names a hint has at most.
const HINTED: usize = 3;

/// `: did you mean db or dbs?` for a name that is similar to some of `known`; empty if none is similar.
pub(super) fn hint<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let written = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&written, &known.to_lowercase());
    let is_near = |(distance, known): &(usize, &str)| *distance <= (known.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = known.map(|known| (distance(known), known)).filter(is_near).collect();
    near.sort_unstable();
    near.dedup();
    let near: Vec<&str> = near.into_iter().take(HINTED).map(|(_, known)| known).collect();
    if near.is_empty() { String::new() } else { format!(": did you mean {}?", near.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_hinted_at_the_nearest_first() {
        let known = ["db", "dbs", "mail", "web-1", "web-2"];
        let hint = |name| hint(name, known.into_iter());
        assert_eq!(hint("dbs2"), ": did you mean dbs?");
        assert_eq!(hint("web1"), ": did you mean web-1?");
        assert_eq!(hint("wbe-3"), "");
        assert_eq!(hint("Mial"), ": did you mean mail?");
        assert_eq!(hint("nosuch"), "");
    }
}
