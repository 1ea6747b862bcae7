//! Documents made to hurt: each is refused quickly, with the code that the boundary table promises.

use super::*;

fn code(text: &str) -> &'static str {
    refused(text).code()
}

#[test]
fn b26_a_cycle_an_unknown_step_and_a_duplicate_id_are_all_pointed_at() {
    let text = of_steps(
        "  - {id: a, after: [b], task: t}\n  - {id: b, task: t}\n  - {id: c, after: [x], task: t}\n  - {id: c, task: t}",
    );
    let error = refused(&text);
    assert_eq!(error.code(), "definition-invalid");
    let paths: Vec<&str> = error.faults().iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["/steps/0", "/steps/2/after/0", "/steps/3/id"]);
}

#[test]
fn b27_an_alias_bomb() {
    let mut bomb = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for n in 1..20 {
        let line = format!("*a{}", n - 1);
        bomb.push_str(&format!("a{n}: &a{n} [{}]\n", [line.as_str(); 9].join(", ")));
    }
    assert_eq!(code(&bomb), "definition-too-complex");
}

#[test]
fn b27_an_alias_bomb_of_long_text() {
    let copies = vec!["*a"; 20_000].join(", ");
    let bomb = format!("a: &a {}\nb: [{copies}]", "x".repeat(100_000));
    assert_eq!(code(&bomb), "definition-too-complex");
}

#[test]
fn b27_an_alias_bomb_of_mappings() {
    let mut bomb = String::from("a0: &a0 {a: 1, b: 2}\n");
    for n in 1..40 {
        bomb.push_str(&format!("a{n}: &a{n} {{a: *a{0}, b: *a{0}}}\n", n - 1));
    }
    assert_eq!(code(&bomb), "definition-too-complex");
}

#[test]
fn b27_anchors_a_hundred_deep() {
    let mut text = String::from("a0: &a0 [x]\n");
    for n in 1..100 {
        text.push_str(&format!("a{n}: &a{n} [*a{}]\n", n - 1));
    }
    assert_eq!(code(&text), "definition-too-complex");
    let nested: String = (0..60).map(|n| format!("&n{n} [")).collect();
    let text = format!("a: {nested}{}{}", "1, ".repeat(4_000), "]".repeat(60));
    assert_eq!(code(&text), "definition-too-complex", "anchors inside anchors are kept once for each");
}

#[test]
fn b27_merge_key_recursion() {
    for text in ["a: &a\n  <<: *a\n", "a: &a {b: {<<: *a}}\n", "a: &a [*a]\n", "a: &a {<<: [*a, *a]}\n"] {
        assert_eq!(code(text), "definition-too-complex", "{text}");
    }
    let mut bomb = String::from("a0: &a0 {k: v}\n");
    for n in 1..30 {
        bomb.push_str(&format!("a{n}: &a{n} {{<<: [*a{0}, *a{0}], k{n}: {{<<: *a{0}}}}}\n", n - 1));
    }
    assert_eq!(code(&bomb), "definition-too-complex");
}

#[test]
fn b27_brackets_without_end() {
    for text in ["[".repeat(100_000), "{a: ".repeat(50_000), "- ".repeat(100_000), "[{".repeat(50_000)] {
        assert_eq!(code(&text), "definition-too-complex");
    }
    let keys: String = (0..100).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert_eq!(code(&keys), "definition-too-complex");
}

#[test]
fn b27_more_values_than_any_workflow_has() {
    assert_eq!(code(&format!("a: [{}]", "1,".repeat(100_000))), "definition-too-complex");
    let question_marks = "? ".repeat(100_000);
    Definition::parse(&question_marks).expect_err("no document");
}

#[test]
fn b27_keys_that_would_make_endless_paths() {
    let nested: String = (0..60).map(|_| format!("{{{}: ", "k".repeat(900))).collect();
    let reads = "'${{ input.x }}', ".repeat(5_000);
    let text = format!("workflow: w\nsteps: [{{id: a, task: t, with: {nested}[{reads}]{}}}]", "}".repeat(60));
    assert_eq!(code(&text), "definition-too-complex");
    let explicit = format!("? {}\n: {{{}}}", "k".repeat(100_000), "a: 1, ".repeat(20_000));
    assert_eq!(code(&explicit), "definition-too-complex");
    let key = "k".repeat(900);
    let aliased = format!("a: &a {{{key}: 1}}\nb: &b {{{key}: *a}}\nc: {{{key}: *b}}");
    assert_eq!(code(&aliased), "definition-too-complex");
}

#[test]
fn b28_one_byte_too_many() {
    let text = |size: usize| format!("workflow: w\ncoded: {{revision: a}}\n#{}", "x".repeat(size - 34));
    assert_eq!(text(LARGEST_DOCUMENT_BYTES).len(), LARGEST_DOCUMENT_BYTES);
    parsed(&text(LARGEST_DOCUMENT_BYTES));
    let error = refused(&text(LARGEST_DOCUMENT_BYTES + 1));
    assert_eq!(error, DefinitionError::TooLarge { size: 256 * 1024 + 1, limit: 256 * 1024 });
    assert_eq!((error.code(), error.faults()), ("payload-too-large", &[] as &[Fault]));
}

fn with_condition(expression: &str) -> String {
    of_steps(&format!("  - {{id: a, task: t, when: \"{expression}\"}}"))
}

#[test]
fn b30_expressions_beyond_their_limits() {
    for expression in [
        format!("1{}", "+1".repeat(20_000)),
        format!("{}true", "!!(".repeat(500)),
        format!("{}input.x{}", "(".repeat(600), ")".repeat(600)),
        "input.a.map(x, x.map(y, y.map(z, z.map(w, w))))".to_owned(),
    ] {
        let error = refused(&with_condition(&expression));
        assert_eq!(error.code(), "expression-too-complex", "{}", listed(error.faults()));
        assert_eq!(error.faults()[0].path, "/steps/0/when");
    }
}

#[test]
fn b30_the_other_faults_are_told_beside_it() {
    let long = format!("1{}", "+1".repeat(2_000));
    let error = refused(&of_steps(&format!("  - {{id: a, task: t, timeout: 5, with: {{x: '${{{{ {long} }}}}'}}}}")));
    let codes: Vec<FaultCode> = error.faults().iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [FaultCode::BadDuration, FaultCode::ExpressionTooComplex]);
    assert_eq!(error.code(), "expression-too-complex");
    assert_eq!(error.faults()[1].path, "/steps/0/with/x");
}

#[test]
fn b31_a_regex_bomb() {
    let error = refused(&with_condition("input.x.matches('((a{100}){100}){100}')"));
    assert_eq!(error.code(), "expression-too-complex", "{}", listed(error.faults()));
    let schema = refused(&of_steps("  - {id: a, task: t, output_schema: {pattern: '((a{100}){100}){100}'}}"));
    assert_eq!(schema.faults()[0].code, FaultCode::BadSchema);
}

#[test]
fn b31_more_patterns_than_any_workflow_has() {
    let steps = |count: usize| -> String {
        (0..count).map(|n| format!("  - {{id: s{n}, task: t, when: \"input.x.matches('a{n}')\"}}\n")).collect()
    };
    parsed(&of_steps(&steps(200)));
    let error = refused(&of_steps(&steps(201)));
    assert_eq!((error.code(), error.faults()[0].path.as_str()), ("expression-too-complex", "/steps/200/when"));
}

#[test]
fn a_document_full_of_faults_gets_a_short_answer() {
    let unknown: String = (0..20_000).map(|n| format!("x{n}: 1\n")).collect();
    assert_eq!(refused(&unknown).faults().len(), 200);
    let twice = format!("workflow: w\na: {{{}}}", "x: 1, ".repeat(20_000));
    assert_eq!(refused(&twice).faults().len(), 200);
    let steps: String = (0..1_000).map(|n| format!("  - {{id: s{n}, after: [q{n}], task: t}}\n")).collect();
    assert_eq!(refused(&of_steps(&steps)).faults().len(), 200);
    let reads: String = (0..1_000).map(|n| format!("  - {{id: s{n}, task: t, when: steps.q{n}.output}}\n")).collect();
    assert_eq!(refused(&of_steps(&reads)).faults().len(), 200);
}

#[test]
fn the_largest_order_of_steps_is_checked_quickly() {
    let after: Vec<String> = (0..999).map(|n| format!("s{n}")).collect();
    let steps: String = (0..999).map(|n| format!("  - {{id: s{n}, after: [], task: t}}\n")).collect();
    let joined = of_steps(&format!("{steps}  - {{id: last, after: [{}], task: t}}", after.join(", ")));
    assert_eq!(parsed(&joined).definition.steps()[999].after.len(), 999);
}

/// Definitions that refer to the next one twice, as JSON.
fn doubling(levels: usize) -> String {
    let level =
        |n: usize| format!(r##""d{n}":{{"anyOf":[{{"$ref":"#/$defs/d{0}"}},{{"$ref":"#/$defs/d{0}"}}]}}"##, n + 1);
    let all: Vec<String> = (0..levels).map(level).collect();
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{levels}":{{"type":"null"}}}}}}"##, all.join(","))
}

#[test]
fn a_schema_that_doubles_itself_is_refused_wherever_a_document_has_one() {
    let schema = doubling(20);
    for (document, path) in [
        (format!("{{workflow: w, input: {schema}, steps: [{{id: a, task: t}}]}}"), "/input"),
        (of_steps(&format!("  - {{id: a, task: t, output_schema: {schema}}}")), "/steps/0/output_schema"),
        (of_steps(&format!("  - {{id: a, signal: s, deadline: 1h, schema: {schema}}}")), "/steps/0/schema"),
        (of_steps(&format!("  - {{id: a, approval: {{deadline: 1h, form: {schema}}}}}")), "/steps/0/approval/form"),
    ] {
        let error = refused(&document);
        assert_eq!(error.code(), "definition-too-complex", "{}", listed(error.faults()));
        assert_eq!(error.faults()[0].path, path);
        // What an earlier version accepted still opens; a small one is used here, because this one would take gigabytes.
        let accepted = document.replace(&schema, r#"{"items":{"$id":"https://example.com/x"}}"#);
        assert_eq!(refused(&accepted).code(), "definition-too-complex");
        assert!(Definition::parse_stored(&accepted).is_ok());
    }
}

#[test]
fn all_schemas_of_a_document_share_one_limit() {
    let steps = |count: usize| {
        let step = |n| format!("  - {{id: s{n}, task: t, output_schema: {}}}\n", doubling(10));
        of_steps(&(0..count).map(step).collect::<String>())
    };
    parsed(&steps(4));
    assert_eq!(refused(&steps(20)).code(), "definition-too-complex");
}
