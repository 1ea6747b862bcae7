//! Stored JSON is cut, not rebuilt.

use super::*;

#[test]
fn a_path_keeps_the_stored_bytes() {
    let stored = r#" {"n": 1.0, "e": 1e2, "huge": 123456789012345678901234567890, "over": 1e400, "neg": -0,
        "order": {"b": 1,  "a": [ 1 , 2 ]}, "nul": "\u0000", "emoji": "😀\ud83d\ude00", "dup": 1, "dup": 2} "#;
    let mut scope = Scope::default();
    scope.set(&["input"], stored);
    for (source, expected) in [
        ("input.n", "1.0"),
        ("input.e", "1e2"),
        ("input.huge", "123456789012345678901234567890"),
        ("input.over", "1e400"),
        ("input.neg", "-0"),
        ("input.order", r#"{"b": 1,  "a": [ 1 , 2 ]}"#),
        ("input.order.a", "[ 1 , 2 ]"),
        ("input.nul", r#""\u0000""#),
        ("input.emoji", r#""😀\ud83d\ude00""#),
        ("input.dup", "2"),
        ("input", stored.trim()),
    ] {
        let cut = Expression::compile(source).unwrap().evaluate_json(&scope).unwrap();
        assert_eq!(cut, expected);
        assert!(matches!(cut, Cow::Borrowed(_)), "{source} is borrowed from the store");
    }
}

#[test]
fn a_path_is_cut_from_a_value_of_any_size() {
    let stored = format!(r#"{{"a": "{}", "b": [{}0]}}"#, "x".repeat(8_000_000), "0,".repeat(1_000_000));
    let mut scope = Scope::default();
    scope.set(&["input"], stored.as_str());
    let cut = Expression::compile("input.b").unwrap().evaluate_json(&scope).unwrap();
    assert_eq!(cut.len(), 2_000_003);
}

#[test]
fn integers_fit_or_are_refused_and_fractions_are_doubles() {
    let mut scope = Scope::default();
    scope.set(&["input"], r#"{"max": 9223372036854775807, "over": 9223372036854775808, "inf": 1e400, "one": 1.0}"#);
    let json = |source| Expression::compile(source).unwrap().evaluate_json(&scope).map(Cow::into_owned);
    assert_eq!(json("[input.max]").as_deref(), Ok("[9223372036854775807]"));
    assert_eq!(json("[input.over]").unwrap_err().code(), "expression_bad_value");
    assert_eq!(json("input.over").as_deref(), Ok("9223372036854775808"));
    assert_eq!(json("input.max > 1.5 && input.one == 1").as_deref(), Ok("true"));
    assert_eq!(json("[input.inf]").unwrap_err().code(), "expression_bad_value");
    assert_eq!(json("input.inf").as_deref(), Ok("1e400"));
}

#[test]
fn keys_compare_as_they_read_not_as_they_are_escaped() {
    let stored = r#"{"a\u0062": 1, "c\"d": 2, "": 3, "\ud83d\ude00": 4}"#;
    let cut = |key: &str| slice(stored, &[Key::from(key)]);
    assert_eq!(
        (cut("ab"), cut("c\"d"), cut(""), cut("😀"), cut("a\\u0062")),
        (Some("1"), Some("2"), Some("3"), Some("4"), None)
    );
}

#[test]
fn a_list_is_split_into_the_texts_of_its_items() {
    assert_eq!(
        split_list(r#" [ 1.0 , {"a": [1, 2]}, "x,]" ,[] ] "#),
        Some(vec!["1.0", r#"{"a": [1, 2]}"#, "\"x,]\"", "[]"])
    );
    assert_eq!(split_list("[]"), Some(vec![]));
    for other in ["{}", "null", "\"[]\"", "[1", "[1 2]", "[,]", ""] {
        assert_eq!(split_list(other), None, "{other}");
    }
}

#[test]
fn text_that_is_not_json_gives_nothing_and_no_panic() {
    let deep = "[".repeat(1_000_000);
    for text in
        ["", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\":1", "\"\\", "[1,", "}{", "é", "{é:1}", "[é", &deep]
    {
        let _ = slice(text, &[Key::from("a")]);
        let _ = slice(text, &[Key::from(0)]);
        let _ = split_list(text);
        let mut scope = Scope::default();
        scope.set(&["input"], text);
        for source in ["input", "input.a", "[input]", "size(input.a)", "has(input.a)", "input.a.b == 1"] {
            let expression = Expression::compile(source).unwrap();
            let _ = expression.evaluate(&scope);
            let _ = expression.evaluate_json(&scope);
        }
    }
}
