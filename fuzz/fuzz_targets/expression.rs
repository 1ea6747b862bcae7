//! Any source over any JSON: nothing panics, values are JSON within their limit, and all ways to evaluate agree.
//!
//! `cargo fuzz run expression -s none` runs it on stable Rust.
#![no_main]

use abide_core::expression::{Expression, Key, MAX_VALUE_BYTES, Scope, Template, slice, split_list};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

// The first line is the source, the rest the stored text.
fuzz_target!(|text: &str| {
    let (source, stored) = text.split_once('\n').unwrap_or((text, r#"{"a":[1,{"b":"x"}],"c":1.5}"#));
    let is_json = serde_json::from_str::<&RawValue>(stored).is_ok();
    let mut scope = Scope::default();
    scope.set(&["input"], stored).set(&["steps", "a", "output"], stored);
    let _ = split_list(stored);
    let _ = slice(stored, &[Key::from("a"), Key::from(1)]);
    if let Ok(expression) = Expression::compile(source) {
        evaluate(&expression, &scope, is_json);
    }
    if let Ok(template) = Template::compile(&serde_json::json!({ "t": source, "u": [source, 1] }))
        && let Ok(rendered) = template.render(&scope)
    {
        assert!(!is_json || serde_json::from_str::<&RawValue>(&rendered).is_ok(), "a rendered template is JSON");
    }
});

fn evaluate(expression: &Expression, scope: &Scope<'_>, is_json: bool) {
    let value = expression.evaluate(scope);
    let json = expression.evaluate_json(scope);
    let holds = expression.evaluate_bool(scope);
    assert!(holds.is_err() || expression.matches(scope) == holds, "a bool matches as it holds");
    if !expression.is_path() {
        assert_eq!(value.is_ok(), json.is_ok(), "a value has JSON");
        assert!(json.as_ref().is_ok_and(|json| json.len() <= MAX_VALUE_BYTES) || json.is_err());
    }
    if let Ok(json) = json {
        assert!(!is_json || serde_json::from_str::<&RawValue>(&json).is_ok(), "a value is JSON");
    }
}
