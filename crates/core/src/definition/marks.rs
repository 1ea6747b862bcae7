//! Texts that look like expressions and are none: `${ x }` and `{{ x }}` of other template languages.

use serde_json::Value;

/// Every such text in a value: the JSON pointer of its string, and what stands there.
pub(super) fn mistaken(value: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    look(value, String::new(), &mut found);
    found
}

fn look(value: &Value, pointer: String, found: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => found.extend(first_in(text).map(|marked| (pointer, marked.to_owned()))),
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                look(item, format!("{pointer}/{n}"), found);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                look(value, format!("{pointer}/{key}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The first text between foreign marks, outside our own.
fn first_in(text: &str) -> Option<&str> {
    let mut at = 0;
    while let Some(next) = text[at..].find(['$', '{']).map(|offset| at + offset) {
        let rest = &text[next..];
        let (open, close) = match rest.as_bytes() {
            [b'$', b'{', b'{', ..] => {
                // Our own: whatever is inside is an expression's business.
                at = rest.find("}}").map_or(text.len(), |end| next + end + 2);
                continue;
            }
            [b'$', b'{', ..] => ("${", "}"),
            [b'{', b'{', ..] => ("{{", "}}"),
            _ => {
                at = next + 1;
                continue;
            }
        };
        return rest[open.len()..].find(close).map(|end| &rest[..open.len() + end + close.len()]);
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_of_other_languages_are_found_and_our_own_are_not() {
        let of = |text: &str| mistaken(&json!(text)).pop().map(|(_, marked)| marked);
        assert_eq!(of("Hello ${ input.name }!"), Some("${ input.name }".into()));
        assert_eq!(of("Hello {{ input.name }}!"), Some("{{ input.name }}".into()));
        for text in
            ["${{ input.name }}", "a $5 {b} c", "${{ {'a': {'b': 1}} }}", "{{ never closed", "${", "{", "{ {x} }"]
        {
            assert_eq!(of(text), None, "{text}");
        }
        let nested = mistaken(&json!({ "a/b": ["x", "${{ y }} ${z}"] }));
        assert_eq!(nested, [("/a~1b/1".to_owned(), "${z}".to_owned())]);
    }
}
