//! Templates: JSON with expressions in its strings.

use serde_json::json;

use super::super::*;
use super::scope;

#[track_caller]
fn rendered(value: serde_json::Value) -> String {
    Template::compile(&value).unwrap().render(&scope()).unwrap()
}

#[test]
fn a_string_that_is_one_expression_keeps_its_type() {
    assert_eq!(rendered(json!("${{ input.count }}")), "3");
    assert_eq!(
        rendered(json!({"a": "${{ input.tags }}", "b": ["${{ input.count + 1 }}", "${{input.yes}}", null], "c": 1.5})),
        r#"{"a":["a", "b", "c"],"b":[4,true,null],"c":1.5}"#
    );
    assert_eq!(rendered(json!({"x": "${{ input.?absent }}"})), r#"{"x":null}"#);
}

#[test]
fn inside_text_an_expression_is_interpolated() {
    for (text, expected) in [
        ("Ship ${{ input.name }}?", "Ship Ada?"),
        ("${{ input.count }}${{ input.price }}", "32.5"),
        ("[${{ input.nothing }}|${{ input.?absent }}]", "[|]"),
        ("tags: ${{ input.tags }}", r#"tags: ["a","b","c"]"#),
        (" ${{ input.count }}", " 3"),
        ("$${{ input.count }} $ {{ }} ${ x }", "$3 $ {{ }} ${ x }"),
        ("a ${{ '}}' + \"}}\" }} b", "a }}}} b"),
        ("a ${{ {'x': {'y': 1}} }} b", r#"a {"x":{"y":1}} b"#),
        ("a ${{ {'x': {'y': 1}}}} b", r#"a {"x":{"y":1}} b"#),
        ("\"${{ 'q\"\\n\\u0000' }}\"", "\"q\"\n\u{0}\""),
    ] {
        let template = Template::compile(&json!(text)).unwrap();
        assert_eq!(template.render_text(&scope()).unwrap(), expected, "{text}");
        let parsed: serde_json::Value = serde_json::from_str(&template.render(&scope()).unwrap()).unwrap();
        assert_eq!(parsed, json!(expected), "{text}");
    }
}

#[test]
fn the_text_of_a_template_is_not_quoted() {
    let text = |value| Template::compile(&value).unwrap().render_text(&scope()).unwrap();
    assert_eq!(text(json!("plain \"text\"\n")), "plain \"text\"\n");
    assert_eq!(text(json!("${{ input.name }}")), "Ada");
    assert_eq!(text(json!("${{ input.?absent }}")), "");
    assert_eq!(text(json!("${{ input.price }}")), "2.5");
    assert_eq!(text(json!({"a": 1})), r#"{"a":1}"#);
}

#[test]
fn a_missing_key_is_refused_marked_in_a_title_and_told_where_nothing_can_be_corrected() {
    let value = json!({ "a": "${{ input.absent }}", "b": "x ${{ input.gone }} ${{ input.name }}", "c": "${{ input.gone + 1 }}" });
    let template = Template::compile(&value).unwrap();
    assert_eq!(template.render(&scope()).unwrap_err().code(), "expression_missing_key");
    let (json, missing) = template.render_tolerant(&scope()).unwrap();
    assert_eq!(json, r#"{"a":null,"b":"x  Ada","c":null}"#);
    assert_eq!(missing.len(), 3);
    let title = |text: &str| Template::compile(&json!(text)).unwrap().render_title(&scope()).unwrap();
    assert_eq!(title("Ship ${{ input.order.id }} to ${{ input.name }}"), "Ship ? to Ada");
    assert_eq!(title("${{ input.absent }}"), "?");
    assert_eq!(title("${{ input.nothing.deeper }}"), "");
}

#[test]
fn a_template_without_expressions_is_constant() {
    let value = json!({"b": [1, 2.0, "x\u{0}\"", null, true], "a": {}, "${{ key }}": []});
    let template = Template::compile(&value).unwrap();
    assert!(template.is_constant());
    assert_eq!(template.render(&Scope::default()).unwrap(), value.to_string());
    assert!(!Template::compile(&json!(["${{ 1 }}"])).unwrap().is_constant());
}

#[test]
fn references_carry_the_pointer_of_their_string() {
    let template = Template::compile(&json!({"a/b": ["x", "${{ input.x }} ${{ run.id }}"], "c": "${{ 1 }}"})).unwrap();
    let found: Vec<_> = template.references().map(|(pointer, expression)| (pointer, expression.source())).collect();
    assert_eq!(found, [("/a~1b/1", "input.x"), ("/a~1b/1", "run.id"), ("/c", "1")]);
}

#[test]
fn all_faults_are_named_at_once() {
    let faults = Template::compile(&json!({
        "a": "${{ input. }} and ${{ 1 + }}",
        "b": ["${{ input.x", "fine ${{ 1 }}", "${{ 'x }}"],
        "c": format!("x ${{{{ {}1 }}}}", "1+".repeat(300)),
    }))
    .unwrap_err();
    let found: Vec<_> =
        faults.iter().map(|(pointer, fault)| (pointer.as_str(), fault.offset(), fault.is_too_complex())).collect();
    assert_eq!(found[..4], [("/a", 10, false), ("/a", 25, false), ("/b/0", 0, false), ("/b/2", 4, false)]);
    assert_eq!((found[4].0, found[4].2), ("/c", true));
    assert!(faults[2].1.to_string().contains("`}}`"));
}

#[test]
fn a_fault_at_run_time_names_the_expression() {
    let template = Template::compile(&json!({"a": "${{ input.absent + 1 }}"})).unwrap();
    let fault = template.render(&scope()).unwrap_err();
    assert_eq!((fault.code(), fault.expression()), ("expression_missing_key", "input.absent + 1"));
}

#[test]
fn what_nests_too_deeply_is_refused() {
    let nested = |levels: usize, inner: serde_json::Value| (0..levels).fold(inner, |value, _| json!([value]));
    assert!(Template::compile(&nested(64, json!(1))).is_ok());
    assert!(Template::compile(&nested(65, json!(1))).unwrap_err()[0].1.is_too_complex());
    let mut scope = Scope::default();
    let deep = nested(40, json!(1)).to_string();
    scope.set(&["input"], deep);
    let render = |levels| Template::compile(&nested(levels, json!("${{ input }}"))).unwrap().render(&scope);
    assert!(render(24).is_ok());
    assert_eq!(render(25).unwrap_err().code(), "expression_bad_value");
}

#[test]
fn a_template_of_many_expressions_has_limits_of_its_own() {
    let mut scope = Scope::default();
    scope.set(&["input"], format!(r#"{{"text": "{}", "list": [{}0]}}"#, "a".repeat(1_000_000), "0,".repeat(999)));
    for expression in ["${{ input }}", "${{ input.?absent }}", "${{ input.list.all(x, x == 0 && x == 0 && x == 0) }}"] {
        let template = Template::compile(&json!(vec![expression; 5_000])).unwrap();
        assert_eq!(template.render(&scope).unwrap_err().code(), "expression_cost_exceeded", "{expression}");
    }
}
