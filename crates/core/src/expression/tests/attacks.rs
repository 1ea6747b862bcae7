//! Documents that want to hold up or end the process. Tests run on threads with 2 MiB of stack.

use super::*;

#[track_caller]
fn too_complex(source: &str) {
    let fault = refused(source);
    assert!(fault.is_too_complex(), "{fault}");
}

/// A text of exactly the allowed length, made of repeated parts.
fn full(open: &str, middle: &str, close: &str) -> String {
    let count = (MAX_SOURCE_BYTES - middle.len()) / (open.len() + close.len());
    format!("{}{middle}{}", open.repeat(count), close.repeat(count))
}

fn big_scope(bytes: usize) -> Scope<'static> {
    let mut scope = Scope::default();
    scope.set(&["input"], format!(r#"{{"text":"{}","list":[{}0]}}"#, "a".repeat(bytes), "0,".repeat(999)));
    scope
}

#[track_caller]
fn costs_too_much(source: &str, scope: &Scope<'_>) {
    let fault = Expression::compile(source).unwrap().evaluate_json(scope).unwrap_err();
    assert_eq!(fault.code(), "expression_cost_exceeded", "{source}: {fault}");
}

#[test]
fn forty_kilobytes_of_additions_are_refused() {
    too_complex(&"1+".repeat(20_000));
    too_complex(&format!("${{{{ {}1 }}}}", "1+".repeat(20_000)));
}

#[test]
fn two_kibibytes_of_any_one_construct_are_refused() {
    for source in [
        full("(", "1", ")"),
        full("!", "true", ""),
        full("-", "1", ""),
        full("- ", "1", ""),
        full("!-", "1", ""),
        full("!!(", "true", ")"),
        full("[", "1", "]"),
        full("{'a':", "1", "}"),
        full("a[", "1", "]"),
        full("a?b:", "c", ""),
        full("a?", "b", ":c"),
        full("(", "", ""),
        full("[", "", ""),
        full("{", "", ""),
        full("size(", "a", ")"),
        full("has(", "a", ")"),
        full("a.map(x,", "x", ")"),
        full("1+", "1", ""),
        full("1*", "1", ""),
        full("a||", "b", ""),
        full("a&&", "b", ""),
        full("a==", "b", ""),
        full("1,", "1", ""),
        format!("a{}", ".trim()".repeat(290)),
        format!("a{}", ".b".repeat(1000)),
        format!("a{}", "[0]".repeat(600)),
        format!("[{}1]", "1,".repeat(1000)),
    ] {
        on_a_small_stack(move || drop(refused(&source)));
    }
    too_complex(&full("(", "1", ")"));
    too_complex(&full("!!(", "true", ")"));
    too_complex(&full("1+", "1", ""));
    too_complex(&full("a?b:", "c", ""));
    too_complex(&format!("a{}", ".trim()".repeat(290)));
}

/// Half of what a thread has by default, in a build without optimisation.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1024 * 1024).spawn(work).unwrap();
    thread.join().unwrap();
}

#[test]
fn what_is_within_the_limits_runs_on_a_small_stack() {
    let level = "1+2*(0<1&&0<1||0<1?";
    let rows = [
        (format!("{}1{}", "(".repeat(63), ")".repeat(63)), "1"),
        (format!("{}true", "!".repeat(63)), "false"),
        (format!("{}1{}", "[".repeat(60), "][0]".repeat(60)), "1"),
        (format!("{}1", "1+".repeat(127)), "128"),
        (format!("' a '{}", ".trim()".repeat(200)), "\"a\""),
        (format!("{}1{}", level.repeat(15), ":0)".repeat(15)), "65535"),
        (format!("{}1", "false?0:".repeat(60)), "1"),
        (format!("{}1{}", "[1].map(x,1)==[1]?".repeat(20), ":0".repeat(20)), "1"),
        (format!("{}'a'{}", "'a'.replace('a',".repeat(60), ")".repeat(60)), "\"a\""),
        (format!("{}'a'{}", "'a'.split(".repeat(60), ")[0]".repeat(60)), "\"a\""),
        (format!("{}0{}", "[0][".repeat(60), "]".repeat(60)), "0"),
        (format!("{}0{}", "{'a':".repeat(60), "}.a".repeat(60)), "0"),
        (format!("{}0{}", "int(".repeat(63), ")".repeat(63)), "0"),
        (format!("{}0{}", "a.?b.orValue(".repeat(60), ")".repeat(60)), "0"),
        (format!("{}1{}", "1*(1+(".repeat(30), "))".repeat(30)), "31"),
    ];
    on_a_small_stack(move || {
        for (source, expected) in rows {
            let mut scope = scope();
            scope.set(&["a"], "{}");
            assert_eq!(Expression::compile(&source).unwrap().evaluate_json(&scope).unwrap(), expected, "{source}");
        }
    });
}

#[test]
fn deep_trees_over_deep_values_run_on_a_small_stack() {
    let level = "1+2*(0<1&&0<1||0<1?";
    let source = format!("{}input==input?1:0{}", level.repeat(14), ":0)".repeat(14));
    on_a_small_stack(move || {
        let mut scope = Scope::default();
        scope.set(&["input"], format!("{}{}", "[".repeat(100), "]".repeat(100)));
        assert!(Expression::compile(&source).unwrap().evaluate(&scope).is_ok());
    });
}

#[test]
fn a_macro_inside_a_macro_is_refused() {
    too_complex("a.map(x, a.map(y, y))");
    too_complex("a.all(x, x.list.exists(y, y == [1].filter(z, true)))");
    assert!(Expression::compile("a.filter(x, x > 1).map(x, x + 1)").is_ok());
}

#[test]
fn a_macro_over_more_than_a_thousand_elements_is_refused() {
    let mut scope = Scope::default();
    scope.set(&["input"], format!("[{}0]", "0,".repeat(1000)));
    for source in ["input.map(x, x)", "input.exists(x, true)", "(input + input).all(x, true)"] {
        costs_too_much(source, &scope);
    }
    scope.set(&["input"], format!("[{}0]", "0,".repeat(999)));
    assert!(Expression::compile("input.all(x, x == 0)").unwrap().evaluate_bool(&scope).unwrap());
}

#[test]
fn work_beyond_the_fuel_is_refused() {
    let scope = big_scope(1000);
    costs_too_much("input.list.map(x, input.list)", &scope);
    costs_too_much("input.list.all(x, input.list == input.list)", &scope);
    costs_too_much("input.list.all(x, !(1 in input.list))", &scope);
    let long_body = vec!["x == 0"; 60].join(" && ");
    costs_too_much(&format!("input.list.all(x, {long_body})"), &scope);
}

#[test]
fn texts_that_grow_are_refused_before_they_are_made() {
    let scope = big_scope(600_000);
    costs_too_much("input.text + input.text", &scope);
    costs_too_much("input.list.map(x, input.text)", &scope);
    costs_too_much("input.list.map(x, input.text.replace('a', 'b'))", &scope);
    costs_too_much("input.text.replace('a', 'bbbb')", &scope);
    costs_too_much("input.text.replace('', input.text)", &scope);
    costs_too_much("input.text.split('')", &scope);
    costs_too_much("input.text.split('a')", &scope);
    costs_too_much("input.list.map(x, 'a').join(input.text)", &scope);
    costs_too_much("[input.text, input.text]", &scope);
    let scope = big_scope(60_000);
    costs_too_much("input.list.map(x, input.text + input.text)", &scope);
    let doubling = "(".repeat(20) + "input.text" + &" + input.text)".repeat(20);
    costs_too_much(&doubling, &scope);
}

#[test]
fn reading_the_same_large_value_again_costs_little() {
    let scope = big_scope(1_000_000);
    let expression = Expression::compile("input.list.all(x, input.text != '')").unwrap();
    assert_eq!(expression.evaluate_bool(&scope), Ok(true));
}

#[test]
fn skipping_over_large_values_again_and_again_is_refused() {
    let (levels, key) = (60, ".a".repeat(60));
    let mut scope = Scope::default();
    let text = "x".repeat(1_000_000);
    scope.set(&["input"], format!("{}\"{text}\"{}", "{\"a\":".repeat(levels), "}".repeat(levels)));
    costs_too_much(&vec![format!("has(input{key}.b)"); 3].join(" || "), &scope);
    let cheap = Expression::compile("[1, 2, 3].exists(x, has(input.b))").unwrap();
    assert_eq!(cheap.evaluate_bool(&scope), Ok(false));
}

#[test]
fn a_list_too_large_to_build_is_refused() {
    let mut scope = Scope::default();
    scope.set(&["input"], format!("[{}0]", "0,".repeat(200_000)));
    costs_too_much("size(input)", &scope);
}

#[test]
fn a_regex_bomb_is_refused() {
    too_complex("a.matches('((a{100}){100}){100}')");
    too_complex(r"a.matches('(\\w{100}){10}')");
    let nested = format!("a.matches('{}{}')", "(".repeat(500), ")".repeat(500));
    let _ = refused(&nested);
    let many: Vec<String> = (0..9).map(|n| format!("a.matches('x{n}')")).collect();
    too_complex(&many.join(" || "));
    assert!(Expression::compile(&vec!["a.matches('x')"; 20].join(" || ")).is_ok(), "equal patterns are one");
}

#[test]
fn patterns_of_daily_use_fit() {
    for pattern in [
        r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$",
        r"^\d{4}-\d{2}-\d{2}T",
        r"(?i)^order-[0-9a-f]{8,32}$",
        r"^\w+$",
        r"^[\w.-]+@[\w.-]+$",
    ] {
        assert!(Expression::compile(&format!("a.matches(r'{pattern}')")).is_ok(), "{pattern}");
    }
}

#[test]
fn matching_costs_by_the_size_of_the_pattern_and_the_text() {
    let scope = big_scope(600_000);
    costs_too_much("input.text.matches('^(a|b)*a(a|b){60}c$')", &scope);
}
