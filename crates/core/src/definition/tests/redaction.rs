//! Where sensitive values go, and how they are hidden.

use super::*;

fn pointers(pointers: &[&str]) -> Vec<String> {
    pointers.iter().map(|&pointer| pointer.to_owned()).collect()
}

#[test]
fn only_the_named_values_are_replaced_and_every_other_byte_stays() {
    for (json, at, redacted) in [
        (
            r#"{"a": 1,  "card" : {"n": [1, "]}"]}, "b":2.50}"#,
            &["/card"][..],
            r#"{"a": 1,  "card" : "[redacted]", "b":2.50}"#,
        ),
        (r#" [1, {"x": "secret"}, 3] "#, &["/1/x"], r#" [1, {"x": "[redacted]"}, 3] "#),
        (r#"{"a/b": {"c~d": true}}"#, &["/a~1b/c~0d"], r#"{"a/b": {"c~d": "[redacted]"}}"#),
        (r#"{"ca\u0072d": "4111"}"#, &["/card"], r#"{"ca\u0072d": "[redacted]"}"#),
        (r#"{"card": 1, "card": 2}"#, &["/card"], r#"{"card": "[redacted]", "card": "[redacted]"}"#),
        (r#"{"a": "text with \" 4111"}"#, &["/a/card"], r#"{"a": "[redacted]"}"#),
        (r#"{"a": null, "b": 1e5}"#, &["/a/card", "/c"], r#"{"a": null, "b": 1e5}"#),
        ("4111", &[""], r#""[redacted]""#),
        ("[]", &["/0"], "[]"),
        ("{}", &["/a"], "{}"),
        ("[[1,2],[3]]", &["/0/1", "/1"], r#"[[1,"[redacted]"],"[redacted]"]"#),
        (r#"{"é": {"ü": "ß"}}"#, &["/é/ü"], r#"{"é": {"ü": "[redacted]"}}"#),
    ] {
        assert_eq!(redact(json, &pointers(at)), redacted, "{json}");
    }
    assert_eq!(redact(r#"{"a": 1}"#, &[]), r#"{"a": 1}"#);
}

#[test]
fn what_is_not_json_is_hidden_as_a_whole() {
    for text in ["", "{", "{\"card\": 4111", "4111 secret", "{\"a\" 1}"] {
        assert_eq!(redact(text, &pointers(&["/card"])), "\"[redacted]\"", "{text}");
    }
}

#[test]
fn values_of_any_depth_are_passed_over() {
    let deep = format!("{{\"x\": {}{}, \"card\": 1}}", "[".repeat(100_000), "]".repeat(100_000));
    let redacted = redact(&deep, &pointers(&["/card"]));
    assert!(redacted.ends_with("\"card\": \"[redacted]\"}"));
    let path = "/0".repeat(1_000);
    let nested = format!("{}1{}", "[".repeat(1_001), "]".repeat(1_001));
    assert!(!redact(&nested, &[path]).contains('1'), "what is too deep to look into is hidden");
}

fn sensitive_inputs(step: &str) -> Vec<String> {
    let text = format!("workflow: w\nsensitive: [/order/card, /items/0/pin]\nsteps:\n  - {{id: a, {step}}}");
    parsed(&text).definition.sensitive_inputs(0)
}

#[test]
fn sensitive_values_are_followed_into_the_input_of_a_step() {
    for (step, expected) in [
        ("task: t", &["/items/0/pin", "/order/card"][..]),
        ("task: t, with: {c: '${{ input.order.card }}', d: 1}", &["/c"]),
        ("task: t, with: {c: '${{ input.order.card.number }}'}", &["/c"]),
        ("task: t, with: {o: '${{ input.order }}'}", &["/o/card"]),
        ("task: t, with: '${{ input }}'", &["/items/0/pin", "/order/card"]),
        ("task: t, with: {t: 'card ${{ input.order.card }}'}", &["/t"]),
        ("task: t, with: {t: ['${{ string(input.order.card) }}']}", &["/t/0"]),
        ("task: t, with: {t: '${{ input.order.id }}'}", &[]),
        ("for_each: input.items, task: t, with: {p: '${{ item.pin }}', s: '${{ item.sku }}'}", &["/p"]),
        ("for_each: input.items, as: line, task: t, with: '${{ line }}'", &["/pin"]),
        ("for_each: 'input.items.filter(i, i.ok)', task: t, with: {s: '${{ item.sku }}'}", &["/s"]),
        ("child: c, deadline: 1h, with: {c: '${{ input.order.card }}'}", &["/c"]),
        (
            "http: {method: PUT, url: 'https://x.y/${{ input.order.card }}', headers: {X: '${{ input.order.card }}'}, body: {b: '${{ input.order }}'}}",
            &["/body/b/card", "/headers/x", "/url"],
        ),
        ("approval: {deadline: 1h}", &["/items/0/pin", "/order/card"]),
        ("sleep: 1s", &[]),
    ] {
        assert_eq!(sensitive_inputs(step), expected, "{step}");
    }
}

#[test]
fn an_interpolated_parent_is_hidden_as_the_text_it_became() {
    let pointers = sensitive_inputs("task: t, with: {t: 'all of ${{ input.order }}', n: 1}");
    let json = r#"{"t":"all of {\"card\":4111}","n":1}"#;
    assert_eq!(redact(json, &pointers), r#"{"t":"[redacted]","n":1}"#);
}

#[test]
fn a_step_that_does_not_exist_has_no_input() {
    assert_eq!(parsed(ORDER).definition.sensitive_inputs(999), Vec::<String>::new());
}
