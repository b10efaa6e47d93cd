//! `a{sv}` for all that may grow: a reader takes what it knows of a dictionary, so that an old program understands a new one and
//! the other way round.
//!
//! The names and the values are those of the type's JSON. What is `null` or an empty list is left out. A number is a `t`, or
//! an `x` where it is negative; a list of objects is `aa{sv}`, and any other list is `as`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use zbus::{OwnedVariant, Variant};

use crate::types::printable_lines;

/// What goes over the bus.
pub type Dictionary = BTreeMap<String, OwnedVariant>;

/// The dictionary of `told`, without characters that harm a bus or a terminal: a bus drops a client that sends it a NUL.
/// Empty where the JSON of `told` is no object.
#[must_use]
pub fn to_dictionary<T: Serialize>(told: &T) -> Dictionary {
    match serde_json::to_value(told) {
        Ok(Json::Object(object)) => of_object(object),
        Ok(_) | Err(_) => Dictionary::new(),
    }
}

/// What a dictionary tells. `Err`: it lacks what the type must have, or has something else in its place.
pub fn from_dictionary<T: DeserializeOwned>(dictionary: Dictionary) -> Result<T, serde_json::Error> {
    serde_json::from_value(to_object(dictionary))
}

fn of_object(object: Map<String, Json>) -> Dictionary {
    let entries = object.into_iter().filter_map(|(name, json)| {
        let value = of_json(json)?;
        Some((name, OwnedVariant::try_from(value).ok()?))
    });
    entries.collect()
}

fn of_json(json: Json) -> Option<Variant<'static>> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(truth) => Variant::from(truth),
        Json::Number(number) => match number.as_u64() {
            Some(number) => Variant::from(number),
            None => Variant::from(number.as_i64()?),
        },
        Json::String(text) => Variant::from(printable_lines(&text)),
        Json::Object(object) => Variant::from(of_object(object)),
        Json::Array(list) if list.is_empty() => return None,
        Json::Array(list) if list.iter().all(Json::is_object) => {
            let objects = list
                .into_iter()
                .filter_map(|json| if let Json::Object(object) = json { Some(of_object(object)) } else { None });
            Variant::from(objects.collect::<Vec<Dictionary>>())
        }
        Json::Array(list) => {
            let text =
                |json: Json| if let Json::String(text) = json { printable_lines(&text) } else { json.to_string() };
            Variant::from(list.into_iter().map(text).collect::<Vec<String>>())
        }
    })
}

fn to_object(dictionary: Dictionary) -> Json {
    dictionary.into_iter().map(|(name, value)| (name, to_json(&value))).collect::<Map<_, _>>().into()
}

fn to_json(value: &Variant<'_>) -> Json {
    #[expect(clippy::wildcard_enum_match_arm, reason = "what is never sent is taken as absent")]
    match value {
        Variant::Bool(truth) => Json::from(*truth),
        Variant::U8(number) => Json::from(*number),
        Variant::U16(number) => Json::from(*number),
        Variant::U32(number) => Json::from(*number),
        Variant::U64(number) => Json::from(*number),
        Variant::I16(number) => Json::from(*number),
        Variant::I32(number) => Json::from(*number),
        Variant::I64(number) => Json::from(*number),
        Variant::Str(text) => Json::from(text.as_str()),
        Variant::Variant(inner) => to_json(inner),
        Variant::Array(list) => list.iter().map(to_json).collect(),
        Variant::Dict(dictionary) => dictionary
            .iter()
            .filter_map(
                |(name, value)| {
                    if let Variant::Str(name) = name { Some((name.to_string(), to_json(value))) } else { None }
                },
            )
            .collect::<Map<_, _>>()
            .into(),
        _ => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize, Default)]
    #[serde(default)]
    struct Told {
        name: String,
        count: u64,
        since: Option<i64>,
        words: Vec<String>,
        inner: Vec<Told>,
        one: Option<Box<Told>>,
    }

    #[test]
    fn a_dictionary_has_everything_and_reads_what_others_leave_out() {
        let inner = Told { name: "inner".to_owned(), ..Told::default() };
        let told = Told {
            name: "a\nb".to_owned(),
            count: u64::MAX,
            since: Some(-1),
            words: vec!["x".to_owned()],
            inner: vec![inner],
            one: Some(Box::new(Told::default())),
        };
        let mut dictionary = to_dictionary(&told);
        assert_eq!(dictionary["words"].value_signature(), "as");
        assert_eq!(dictionary["inner"].value_signature(), "aa{sv}");
        dictionary.insert("unheard-of".to_owned(), OwnedVariant::from(1_u32));
        assert_eq!(from_dictionary::<Told>(dictionary).expect("it is read"), told);
        assert_eq!(from_dictionary::<Told>(Dictionary::new()).expect("all may be absent"), Told::default());
    }

    #[test]
    fn nothing_goes_over_the_bus_that_it_would_take_amiss() {
        let told = Told { name: "a\0b\u{1b}[31m".to_owned(), ..Told::default() };
        let read: Told = from_dictionary(to_dictionary(&told)).expect("it is read");
        assert_eq!(read.name, "a\\0b\\u{1b}[31m");
    }
}
