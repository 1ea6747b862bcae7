//! What holds for every text and every value.

use proptest::prelude::*;
use serde_json::Value as Json;

use super::super::*;
use super::INPUT;

/// Words and signs of the language, so that chance writes expressions that often compile.
const WORDS: &[&str] = &[
    "input",
    "steps",
    "x",
    "a",
    "name",
    "items",
    "tags",
    "count",
    ".",
    ".",
    ".",
    "?",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "+",
    "-",
    "*",
    "/",
    "%",
    "!",
    "==",
    "!=",
    "<",
    ">",
    "<=",
    "&&",
    "||",
    " in ",
    "1",
    "0",
    "2.5",
    "9223372036854775807",
    "'a'",
    "'b\\n'",
    "null",
    "true",
    "false",
    "has(",
    "size(",
    "int(",
    "string(",
    ".map(x,",
    ".all(x,",
    ".filter(x,",
    ".orValue(",
    ".hasValue()",
    ".?name",
    ".split('')",
    ".join(',')",
    ".trim()",
    ".matches('a+')",
    "input.tags",
    "input.items",
    "input.name",
    "input.nested",
    "[0]",
    ".substring(1)",
    ".replace('','zz')",
    "input.count",
    ".size()",
];

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "\\PC{0,6}|[\u{0}-\u{1f}\"\\\\]{0,4}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::vec(("[abc\"\\\\é]{0,2}", inner), 0..6).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

fn token_soup() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(WORDS), 0..24).prop_map(|words| words.concat())
}

/// Expressions that always compile.
fn any_expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "1",
        "-1",
        "2.5",
        "'ab'",
        "true",
        "null",
        "input.name",
        "input.tags",
        "input.items",
        "input.count",
        "input.absent",
        "input",
        "[]",
        "{'k': 1}",
        "9223372036854775807",
        "input.emoji",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(4, 32, 3, |inner| {
        let operators = prop::sample::select(vec!["+", "-", "*", "/", "%", "==", "<", "in", "&&", "||"]);
        let methods = prop::sample::select(vec![
            ".size()",
            ".trim()",
            ".split('')",
            ".join('-')",
            "[0]",
            ".k",
            ".substring(1)",
            ".replace('', 'ab')",
            ".matches('a')",
        ]);
        prop_oneof![
            (inner.clone(), operators, inner.clone())
                .prop_map(|(left, sign, right)| format!("({left}) {sign} ({right})")),
            (inner.clone(), methods).prop_map(|(value, method)| format!("({value}){method}")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a}) ? ({b}) : ({c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}, {{'k': {a}}}]")),
            inner.prop_map(|value| format!("!({value})")),
        ]
    })
}

/// True when an integer in it has more than 63 bits and a sign.
fn has_wide_integer(value: &Json) -> bool {
    match value {
        Json::Number(number) => number.is_u64() && !number.is_i64(),
        Json::Array(items) => items.iter().any(has_wide_integer),
        Json::Object(members) => members.values().any(has_wide_integer),
        Json::Null | Json::Bool(_) | Json::String(_) => false,
    }
}

fn evaluate_every_way(source: &str, scope: &Scope<'_>) {
    let Ok(expression) = Expression::compile(source) else { return };
    let value = expression.evaluate(scope);
    let json = expression.evaluate_json(scope);
    let _ = expression.evaluate_bool(scope);
    let _ = expression.matches(scope);
    if let Ok(json) = &json {
        serde_json::from_str::<&serde_json::value::RawValue>(json).expect("a value is JSON");
        assert!(expression.is_path() || json.len() <= MAX_VALUE_BYTES);
    }
    assert!(expression.is_path() || value.is_ok() == json.is_ok());
}

fn slice_by_tree<'v>(value: &'v Json, keys: &[Key]) -> Option<&'v Json> {
    keys.iter().try_fold(value, |value, key| match key {
        Key::Name(name) => value.as_object()?.get(name),
        Key::Index(index) => value.as_array()?.get(*index),
    })
}

fn any_keys() -> impl Strategy<Value = Vec<Key>> {
    let key = prop_oneof!["[abc\"\\\\é]{0,2}".prop_map(Key::Name), (0usize..4).prop_map(Key::Index)];
    prop::collection::vec(key, 0..4)
}

proptest! {
    #[test]
    fn compiling_any_text_never_panics(text in "\\PC{0,80}|[ -~\\n]{0,200}") {
        let _ = Expression::compile(&text);
        let _ = Template::compile(&Json::from(format!("a ${{{{ {text}")));
    }

    #[test]
    fn token_soup_never_panics(source in token_soup()) {
        let mut scope = Scope::default();
        scope.set(&["input"], INPUT);
        evaluate_every_way(&source, &scope);
    }

    #[test]
    fn evaluating_gives_json_or_a_typed_error(source in any_expression()) {
        let mut scope = Scope::default();
        scope.set(&["input"], INPUT);
        evaluate_every_way(&source, &scope);
    }

    #[test]
    fn any_text_in_the_scope_is_survived(text in "[\\[\\]{}\",:\\\\0-9a é]{0,40}", source in token_soup()) {
        let mut scope = Scope::default();
        scope.set(&["input"], text.as_str());
        if let Ok(expression) = Expression::compile(&source) {
            let _ = expression.evaluate(&scope);
            let _ = expression.evaluate_json(&scope);
        }
        let _ = split_list(&text);
        let _ = slice(&text, &[Key::from("a"), Key::from(0)]);
    }

    #[test]
    fn slicing_agrees_with_building(value in any_json(), keys in any_keys(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let cut = slice(&text, &keys).map(|cut| serde_json::from_str::<Json>(cut).unwrap());
        prop_assert_eq!(cut.as_ref(), slice_by_tree(&value, &keys));
    }

    #[test]
    fn splitting_a_list_gives_its_items(items in prop::collection::vec(any_json(), 0..6)) {
        let text = serde_json::to_string_pretty(&items).unwrap();
        let split: Vec<Json> = split_list(&text).unwrap().into_iter().map(|item| serde_json::from_str(item).unwrap()).collect();
        prop_assert_eq!(split, items);
    }

    #[test]
    fn a_built_value_is_written_as_it_was_read(value in any_json()) {
        let mut scope = Scope::default();
        scope.set(&["input"], value.to_string());
        let expression = Expression::compile("[input]").unwrap();
        let built = expression.evaluate_json(&scope);
        if has_wide_integer(&value) {
            prop_assert_eq!(built.unwrap_err().code(), "expression_bad_value");
        } else {
            let written: Json = serde_json::from_str(&built.unwrap()).unwrap();
            prop_assert_eq!(as_doubles(&written[0]), as_doubles(&value));
        }
    }

    #[test]
    fn rendering_gives_json(value in any_json(), text in "\\PC{0,8}", source in any_expression()) {
        let mut scope = Scope::default();
        scope.set(&["input"], value.to_string());
        let template = serde_json::json!({"a": text, "b": [format!("{text}${{{{ input }}}}{text}"), "${{ input }}", value], "c": format!("${{{{ {source} }}}}")});
        if let Ok(template) = Template::compile(&template)
            && let Ok(rendered) = template.render(&scope)
        {
            let rendered: Json = serde_json::from_str(&rendered).unwrap();
            prop_assert_eq!(&rendered["b"][1], &value);
        }
    }

    #[test]
    fn ints_and_doubles_compare_as_real_numbers(int in any::<i64>(), near in -3i64..3, fraction in 0u8..4) {
        let double = int.saturating_add(near) as f64 + f64::from(fraction) / 4.0;
        // Every double here is a multiple of a quarter, and i128 holds both exactly.
        let exact = (i128::from(int) * 4).cmp(&((double * 4.0) as i128));
        prop_assert_eq!(value::compare_int_double(int, double), exact);
    }
}

/// An integer beyond 64 bits comes back as a double.
fn as_doubles(value: &Json) -> Json {
    match value {
        Json::Number(number) if number.as_i64().is_none() => Json::from(number.as_f64()),
        Json::Array(items) => items.iter().map(as_doubles).collect(),
        Json::Object(members) => members.iter().map(|(key, member)| (key.clone(), as_doubles(member))).collect(),
        other => other.clone(),
    }
}
