//! Which names that exist somebody may have meant who has written another one.

/// Those of `known` that are similar enough to `name` for a typing error, the nearest first. Capitals make no difference.
pub fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let written = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&written, &known.to_lowercase());
    let is_near =
        |(distance, known): &(usize, &str)| *distance <= (known.chars().count() / 3).max(1);
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|known| (distance(known), known))
        .filter(is_near)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, known)| known).collect()
}
