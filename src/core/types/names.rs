//! Names of services in text.

/// `a, b, c and 5 more`: the first `limit` of `names`, and how many others there are.
#[must_use]
pub fn first_named(names: &[&str], limit: usize) -> String {
    let shown = names[..names.len().min(limit)].join(", ");
    match names.len().saturating_sub(limit) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_named_as_there_is_room_for_and_the_others_are_counted() {
        let names = ["a", "b", "c"];
        let told = [3, 2, 1].map(|limit| first_named(&names, limit));
        assert_eq!(told, ["a, b, c", "a, b and 1 more", "a and 2 more"]);
        assert_eq!(first_named(&[], 2), "");
    }
}
