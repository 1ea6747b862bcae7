//! One hash for all texts that mean the same document.
//!
//! Comments, the order of keys, quoting, anchors and YAML or JSON make no difference. Numbers count as what a task
//! would receive: `1.0`, `1.00` and `1e0` are one number, and `1` is another, since a typed worker tells them apart.

use serde_json::Value;

use crate::ids::Digest;

pub(super) fn hash(document: &Value) -> Digest {
    let mut bytes = Vec::with_capacity(4_096);
    write(document, &mut bytes);
    Digest::of_fields([b"workflow".as_slice(), &bytes])
}

/// Every value starts with its type, and text with its length, so that no two values look alike.
fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'n'),
        Value::Bool(false) => out.push(b'f'),
        Value::Bool(true) => out.push(b't'),
        Value::Number(number) => {
            out.push(b'#');
            write_text(&number.to_string(), out);
        }
        Value::String(text) => {
            out.push(b'"');
            write_text(text, out);
        }
        Value::Array(items) => {
            out.push(b'[');
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Object(entries) => {
            out.push(b'{');
            out.extend((entries.len() as u64).to_le_bytes());
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in sorted {
                write_text(key, out);
                write(value, out);
            }
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
