//! A value as one line of JSON, so that an operator who looks into a directory or into etcd sees who holds the lock.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::json;

use crate::types::{Value, WriteId};

/// A value, and what a store keeps beside it.
#[derive(Deserialize)]
struct Encoded {
    body: String,
    fields: BTreeMap<String, String>,
    write: Option<WriteId>,
}

/// The body as the text that it is, see [`refusal`](super::refusal).
pub fn body(value: &Value) -> Cow<'_, str> {
    String::from_utf8_lossy(&value.body)
}

/// The line of a value, without a newline, with the attempt that writes it if a store needs that.
pub fn line(value: &Value, write: Option<WriteId>) -> Vec<u8> {
    let mut line = json!({ "body": body(value), "fields": value.fields });
    if let Some(write) = write {
        line["write"] = json!(write);
    }
    line.to_string().into_bytes()
}

/// The value of a line, and the attempt that wrote it.
pub fn parse(line: &[u8]) -> Option<(Value, Option<WriteId>)> {
    let Encoded {
        body,
        fields,
        write,
    } = serde_json::from_slice(line).ok()?;
    let body = body.into_bytes();
    Some((Value { body, fields }, write))
}

/// The value of a body, and of fields as a JSON object of strings.
pub fn value(body: Vec<u8>, fields: &str) -> Value {
    if let Ok(fields) = serde_json::from_str(fields) {
        return Value { body, fields };
    }
    // The fields are the malformed part. They come first, in case there is no room for both.
    let body = String::from_utf8_lossy(&body);
    Value::malformed(format!("{fields} {body}").as_bytes())
}
