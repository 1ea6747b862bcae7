//! The language by table, its limits by attack, and what always holds by chance.

mod attacks;
mod properties;
mod templates;
mod texts;

use super::*;

const INPUT: &str = r#"{
    "name": "Ada", "count": 3, "price": 2.5, "big": 9007199254740993, "nothing": null, "yes": true,
    "tags": ["a", "b", "c"], "items": [{"sku": "x", "qty": 1}, {"sku": "y", "qty": 0}],
    "nested": {"deep": {"key": "found"}}, "cool-off": 5, "emoji": "añ😀", "which": "name"
}"#;

fn scope() -> Scope<'static> {
    let mut scope = Scope::default();
    scope.set(&["input"], INPUT);
    scope.set(&["steps", "charge", "output"], r#"{"id": "ch_1", "ok": true}"#);
    scope.set(&["steps", "charge", "state"], "\"completed\"");
    scope.set(&["steps", "cool-off", "output"], "null");
    scope.set(&["failure"], "null");
    scope.set(&["run", "id"], "\"run_1\"".to_owned());
    scope
}

fn json(source: &str) -> Result<String, EvalError> {
    let expression = Expression::compile(source).unwrap_or_else(|fault| panic!("{source}: {fault}"));
    expression.evaluate_json(&scope()).map(Cow::into_owned)
}

#[track_caller]
fn gives(rows: &[(&str, &str)]) {
    for (source, expected) in rows {
        assert_eq!(json(source).as_deref(), Ok(*expected), "{source}");
    }
}

#[track_caller]
fn fails(code: &str, sources: &[&str]) {
    for source in sources {
        assert_eq!(json(source).map_err(|fault| fault.code().to_owned()), Err(code.to_owned()), "{source}");
    }
}

#[track_caller]
fn refused(source: &str) -> CompileError {
    match Expression::compile(source) {
        Err(fault) => fault,
        Ok(_) => panic!("{source} compiles"),
    }
}

#[test]
fn literals_are_values() {
    gives(&[
        ("1", "1"),
        ("0x1F", "31"),
        ("-0x10", "-16"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("1e3", "1000.0"),
        ("true", "true"),
        ("null", "null"),
        ("'a\"b'", r#""a\"b""#),
        (r#""tab\tA\x41\u0041\U0001F600\101\\""#, r#""tab\tAAA😀A\\""#),
        (r"r'\d'", r#""\\d""#),
        ("'\\u0000'", r#""\u0000""#),
        ("[1, 'a', [],]", r#"[1,"a",[]]"#),
        ("{'b': 1, 'a': {'c': null},}", r#"{"b":1,"a":{"c":null}}"#),
        ("{'a': 1, 'b': 2, 'a': 3}", r#"{"a":3,"b":2}"#),
        ("{input.name: 1}", r#"{"Ada":1}"#),
    ]);
}

#[test]
fn marks_and_space_around_an_expression_do_not_count() {
    let written = ["1 + 1", " 1 + 1 ", "${{1 + 1}}", "\n${{ 1 + 1 }} "];
    for source in written {
        let expression = Expression::compile(source).unwrap();
        assert_eq!(expression.source(), "1 + 1");
        assert_eq!(expression, Expression::compile("1 + 1").unwrap());
    }
    gives(&[("${{ {'a': {'b': 1}} }}", r#"{"a":{"b":1}}"#), ("${{ {'a': {'b': 1}}}}", r#"{"a":{"b":1}}"#)]);
}

#[test]
fn operators_bind_as_in_cel() {
    gives(&[
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("10 - 3 - 2", "5"),
        ("7 / 2", "3"),
        ("-7 / 2", "-3"),
        ("-7 % 3", "-1"),
        ("7.0 / 2", "3.5"),
        ("1 + 0.5", "1.5"),
        ("7.5 % 2", "1.5"),
        ("!true || true", "true"),
        ("true || false && false", "true"),
        ("1 < 2 == true", "true"),
        ("- - 1", "1"),
        ("!!true", "true"),
        ("1 > 2 ? 'a' : 2 > 1 ? 'b' : 'c'", "\"b\""),
        ("'a' + 'b' + 'c'", "\"abc\""),
        ("[1] + [2, 3]", "[1,2,3]"),
        ("'a' < 'b' && false < true && 2.5 >= 2", "true"),
        ("2 in [1, 2.0]", "true"),
        ("'name' in input && !('x' in input) && !(1 in input)", "true"),
        ("'a' in input.tags", "true"),
    ]);
}

#[test]
fn and_or_and_choices_evaluate_only_what_they_need() {
    gives(&[
        ("true || 1 / 0 == 1", "true"),
        ("false && input.absent.key", "false"),
        ("true ? 1 : 1 / 0", "1"),
        ("has(input.absent) && input.absent > 1", "false"),
    ]);
}

#[test]
fn equality_of_different_types_is_false() {
    gives(&[
        ("1 == '1'", "false"),
        ("null == false", "false"),
        ("[1] == {'a': 1}", "false"),
        ("1 == 1.0", "true"),
        ("[1, {'a': 2}] == [1.0, {'a': 2.0}]", "true"),
        ("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "true"),
        ("{'a': 1} == {'b': 1}", "false"),
        ("[1] != [1, 2]", "true"),
        ("input.nothing == null", "true"),
    ]);
}

#[test]
fn ints_and_doubles_compare_exactly() {
    gives(&[
        ("9007199254740993 == 9007199254740992.0", "false"),
        ("9007199254740993 > 9007199254740992.0", "true"),
        ("9007199254740992.0 < input.big", "true"),
        ("9007199254740992 == 9007199254740992.0", "true"),
        ("9223372036854775807 < 9223372036854775808.0", "true"),
        ("-9223372036854775808 == -9223372036854775808.0", "true"),
        ("-9223372036854775808 > -1e300", "true"),
        ("1 < 1.5 && -1 > -1.5 && 0 == -0.0", "true"),
    ]);
}

#[test]
fn arithmetic_beyond_its_range_is_an_error() {
    gives(&[("-9223372036854775808", "-9223372036854775808"), ("9223372036854775807", "9223372036854775807")]);
    fails(
        "expression_arithmetic",
        &[
            "9223372036854775807 + 1",
            "-9223372036854775808 - 1",
            "-9223372036854775808 / -1",
            "-9223372036854775808 % -1",
            "-(-9223372036854775808)",
            "9223372036854775807 * 2",
            "1 / 0",
            "1 % 0",
            "1.0 / 0",
            "1.0 % 0.0",
            "1e308 * 10",
            "int(1e19)",
            "int(9223372036854775808.0)",
        ],
    );
    assert!(refused("9223372036854775808").to_string().contains("out of range"));
    assert!(refused("1e400").to_string().contains("out of range"));
    assert!(refused("99999999999999999999").to_string().contains("out of range"));
}

#[test]
fn functions_convert_and_measure() {
    gives(&[
        ("size('añ😀')", "3"),
        ("input.emoji.size()", "3"),
        ("size(input.tags) + input.nested.size()", "4"),
        ("int('-12') + int(2.9) + int(3)", "-7"),
        ("int(-2.9)", "-2"),
        ("double('1.5') + double(1)", "2.5"),
        ("string(1) + string(1.0) + string(true) + string('x')", "\"11.0truex\""),
        ("bool('true') && !bool('0') && bool(true)", "true"),
    ]);
    fails("expression_bad_value", &["int('x')", "double('1e999')", "double('NaN')", "bool('yes')"]);
    fails("expression_type", &["int(null)", "size(1)", "string([])", "double(true)", "bool(1)"]);
}

#[test]
fn methods_work_on_strings() {
    gives(&[
        ("'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')", "true"),
        ("'aBñ'.upperAscii() + 'aBÑ'.lowerAscii()", "\"ABñabÑ\""),
        ("'  a b '.trim()", "\"a b\""),
        ("'a,b,,c'.split(',')", r#"["a","b","","c"]"#),
        ("'añ😀'.split('')", r#"["a","ñ","😀"]"#),
        ("['a', 'b'].join('-') + ['a', 'b'].join() + [].join(',')", "\"a-bab\""),
        ("'banana'.replace('an', 'o')", "\"booa\""),
        ("'añ😀x'.substring(1, 3) + 'abc'.substring(2)", "\"ñ😀c\""),
        ("'abc'.substring(3)", "\"\""),
        ("'2026-11-16'.matches(r'^\\d{4}-\\d{2}-\\d{2}$')", "true"),
        ("'x'.matches('[0-9]')", "false"),
    ]);
    fails("expression_bad_value", &["'abc'.substring(4)", "'abc'.substring(-1)", "'abc'.substring(2, 1)"]);
    fails("expression_type", &["(1).trim()", "'a'.contains(1)", "[1].join(',')", "'a'.join(',')", "null.size()"]);
}

#[test]
fn macros_walk_lists_and_the_keys_of_maps() {
    gives(&[
        ("input.items.all(i, i.qty >= 0)", "true"),
        ("input.items.all(i, i.qty > 0)", "false"),
        ("input.items.exists(i, i.sku == 'y')", "true"),
        ("input.items.exists_one(i, i.qty > 0) && !input.items.exists_one(i, true)", "true"),
        ("input.items.filter(i, i.qty > 0).map(i, i.sku)", "[\"x\"]"),
        ("[1, 2, 3].map(n, n * input.count)", "[3,6,9]"),
        ("{'a': 1, 'b': 2}.map(k, k)", r#"["a","b"]"#),
        ("[].all(x, false) && ![].exists(x, true)", "true"),
        ("[{'input': 1}].map(input, input.input)", "[1]"),
    ]);
    fails("expression_type", &["(1).map(x, x)", "[1].all(x, x)", "'abc'.filter(x, true)"]);
}

#[test]
fn keys_are_read_by_name_and_by_index() {
    gives(&[
        ("steps.charge.output.id", "\"ch_1\""),
        ("steps.charge.state + '!'", "\"completed!\""),
        ("input['cool-off'] + 1", "6"),
        ("input.items[1].sku + input['items'][0]['sku']", "\"yx\""),
        ("input[input.which]", "\"Ada\""),
        ("input.tags[input.count - 1]", "\"c\""),
        ("(input.nested).deep.key", "\"found\""),
        ("[[1, 2], [3]][0][1]", "2"),
        ("{'a': {'b': 7}}.a.b", "7"),
        ("run.id", "\"run_1\""),
        ("steps.charge.output.ok", "true"),
    ]);
}

#[test]
fn a_name_with_longer_names_below_it_is_their_map() {
    gives(&[
        ("run", r#"{"id":"run_1"}"#),
        ("steps.charge.size()", "2"),
        ("steps['cool-off']", r#"{"output":null}"#),
        ("steps.filter(id, steps[id].output == null)", "[\"cool-off\"]"),
        ("has(steps.charge) && !has(steps.other)", "true"),
    ]);
}

#[test]
fn of_two_prefixes_that_fit_the_longer_one_wins() {
    let mut scope = Scope::default();
    scope.set(&["steps"], r#"{"a": {"output": 1, "state": 2}}"#).set(&["steps", "a", "output"], "3");
    let read = |source| Expression::compile(source).unwrap().evaluate_json(&scope).unwrap().into_owned();
    assert_eq!(read("steps.a.output"), "3");
    assert_eq!(read("steps.a.state"), "2");
    scope.set(&["steps", "a", "output"], "4");
    assert_eq!(Expression::compile("steps.a.output").unwrap().evaluate_json(&scope).unwrap(), "4");
}

#[test]
fn a_path_to_a_missing_key_is_an_error_and_below_null_it_is_null() {
    gives(&[
        ("input.nothing", "null"),
        ("input.nothing.deeper[3]", "null"),
        ("failure.code", "null"),
        ("failure.code == null", "true"),
        ("input.?absent", "null"),
        ("input.?absent.deeper", "null"),
        ("steps.?other.output.id", "null"),
    ]);
    let missing = |source: &str| match json(source) {
        Err(EvalError::MissingKey { key, present, .. }) => (key, present),
        other => panic!("{source}: {other:?}"),
    };
    let keys = |present: &[&str]| -> Vec<String> { present.iter().map(|key| (*key).to_owned()).collect() };
    assert_eq!(missing("steps.charge.output.amont"), ("amont".into(), keys(&["id", "ok"])));
    assert_eq!(missing("input.tags[9]"), ("9".into(), keys(&[])));
    assert_eq!(missing("steps.other.output.id"), ("other".into(), keys(&["charge", "cool-off"])));
    fails("expression_missing_key", &["input.absent", "input.absent.deeper[3]", "unknown"]);
    fails("expression_type", &["input.name.key"]);
}

#[test]
fn a_missing_key_inside_an_expression_is_an_error_that_names_the_keys_present() {
    let rows: [(&str, &str, &[&str]); 9] = [
        ("steps.charge.output.amount > 0", "amount", &["id", "ok"]),
        ("input.nested.deeper.key == 1", "deeper", &["deep"]),
        ("steps.other.output == 1", "other", &["charge", "cool-off"]),
        ("steps.charge.failure == 1", "failure", &["output", "state"]),
        ("output == 1", "output", &["input", "steps", "failure", "run"]),
        ("input.tags[3] == 'd'", "3", &[]),
        ("input.items.map(i, i.price)", "price", &["sku", "qty"]),
        ("input.nested[input.name] == 1", "(computed)", &["deep"]),
        ("input.tags[-1] == 'c'", "(computed)", &[]),
    ];
    for (source, key, present) in rows {
        let present = present.iter().map(|key| (*key).to_owned()).collect();
        let missing = EvalError::MissingKey { expression: source.to_owned(), key: key.to_owned(), present };
        assert_eq!(json(source), Err(missing));
    }
    fails(
        "expression_type",
        &["input.name.key == 1", "input.count[0] == 1", "input.tags.first == 1", "input[true] == 1"],
    );
}

#[test]
fn an_error_names_twenty_keys_and_no_value() {
    let keys: Vec<String> = (0..50).map(|n| format!("\"k{n}\":\"secret\"")).collect();
    let mut scope = Scope::default();
    scope.set(&["input"], format!("{{{}}}", keys.join(",")));
    for source in ["input.x == 1", "[input].map(i, i.x)", "input.k0 + 1 == 2", "int(input.k0)", "input[input.k0] == 1"]
    {
        let fault = Expression::compile(source).unwrap().evaluate(&scope).unwrap_err();
        assert!(!format!("{fault} {fault:?}").contains("secret"), "{fault}");
        if let EvalError::MissingKey { present, .. } = fault {
            assert_eq!(present.len(), 20);
        }
    }
}

#[test]
fn has_and_optional_access_test_without_an_error() {
    gives(&[
        ("has(input.name) && has(input.nothing) && !has(input.absent)", "true"),
        ("has(input.absent.deeper)", "false"),
        ("has(input.items[1].sku) && !has(input.items[2])", "true"),
        ("has(failure)", "true"),
        ("input.items.all(i, has(i.sku) && !has(i.price))", "true"),
        ("has(input[input.which])", "true"),
        ("input.?absent.orValue('x') + input.?name.orValue('y')", "\"xAda\""),
        ("input[?'absent'].hasValue() || input.?nested.deep.key.hasValue()", "true"),
        ("input.?absent.deeper.still.orValue(1) + 1", "2"),
        ("(input.?absent).orValue([])", "[]"),
        ("input.items.map(i, i.?price.orValue(0))", "[0,0]"),
        ("input.tags[?7].orValue('none')", "\"none\""),
        ("input.tags[?input.count].orValue('none')", "\"none\""),
        ("failure.?code.orValue('') == '409'", "false"),
    ]);
    fails("expression_missing_key", &["input.absent.?key.orValue(1)"]);
}

#[test]
fn an_optional_must_be_given_a_value() {
    for source in
        ["input.?a == 1", "[input.?a]", "size(input.?a)", "true ? input.?a : 1", "-input.?a", "input.?a.trim()"]
    {
        let fault = refused(source);
        assert!(fault.to_string().contains("orValue"), "{fault}");
    }
    assert!(refused("input.a.orValue(1)").to_string().contains("a.?b.orValue(c)"));
    assert!(refused("input.?trim()").to_string().contains("keys only"));
}

#[test]
fn references_are_the_names_read_and_whether_they_are_only_tested() {
    let read = |source: &str| -> Vec<(String, bool)> {
        let expression = Expression::compile(source).unwrap();
        expression.references().iter().map(|reference| (reference.keys.join("/"), reference.tested)).collect()
    };
    let row = |keys: &str, tested| (keys.to_owned(), tested);
    assert_eq!(read("steps.charge.output.id"), [row("steps/charge/output/id", false)]);
    assert_eq!(read("steps['cool-off'].output"), [row("steps/cool-off/output", false)]);
    assert_eq!(read("input.items[0].sku"), [row("input/items/0/sku", false)]);
    assert_eq!(read("input.items.all(i, i.ok && run.id != '')"), [row("input/items", false), row("run/id", false)]);
    assert_eq!(read("steps[input.which].output"), [row("steps", false), row("input/which", false)]);
    assert_eq!(read("has(a.b) || c.?d.orValue(e.f)"), [row("a/b", true), row("c/d", true), row("e/f", false)]);
    assert_eq!(read("has(a.b) && a.b"), [row("a/b", false)]);
    assert_eq!(read("has(a[b.c].d)"), [row("a", true), row("b/c", false)]);
    assert_eq!(read("(a.b).c + a.b.c"), [row("a/b/c", false)]);
    assert_eq!(read("1 + 1"), []);
}

#[test]
fn only_a_name_and_constant_keys_are_a_path() {
    let is_path = |source| Expression::compile(source).unwrap().is_path();
    for source in ["input", "input.a.b", "input['a-b'][0]", "(input.a)", "input.?a", "${{ input.a }}"] {
        assert!(is_path(source), "{source}");
    }
    for source in ["input[a]", "input.a + 1", "input.size()", "'a'", "has(input.a)", "input.?a.orValue(1)"] {
        assert!(!is_path(source), "{source}");
    }
}

#[test]
fn a_condition_must_be_a_bool() {
    let holds = |source| Expression::compile(source).unwrap().evaluate_bool(&scope());
    assert_eq!(holds("steps.charge.output.ok"), Ok(true));
    assert_eq!(holds("input.count > 5"), Ok(false));
    let fault = holds("input.name").unwrap_err();
    assert_eq!(fault.to_string(), "`input.name`: a condition takes a bool, but was given string");
    assert_eq!(holds("input.nothing").unwrap_err().code(), "expression_type");
    assert_eq!(holds("input.absent").unwrap_err().code(), "expression_missing_key");
    assert_eq!(holds("input.?absent").unwrap_err().code(), "expression_missing_key");
}

#[test]
fn where_a_result_is_matched_a_missing_key_means_no() {
    let matched = |source| Expression::compile(source).unwrap().matches(&scope());
    assert_eq!(matched("failure.code == '409'"), Ok(false));
    assert_eq!(matched("output.done"), Ok(false));
    assert_eq!(matched("steps.charge.output.ok"), Ok(true));
    assert_eq!(matched("input.name").unwrap_err().code(), "expression_type");
    assert_eq!(matched("1 / 0 == 1").unwrap_err().code(), "expression_arithmetic");
}

#[test]
fn a_syntax_fault_says_where_and_what_to_write() {
    for (source, offset, hint) in [
        ("input.a = 1", 8, "`==`"),
        ("${{ a & b }}", 6, "`&&`"),
        ("  a b", 4, "complete before it"),
        ("a.b(", 2, "known are"),
        ("'abc'.containz('b')", 6, "did you mean `contains`?"),
        ("x.starts_with('a')", 2, "did you mean `startsWith`?"),
        ("len(x)", 0, "known are"),
        ("sizes(x)", 0, "did you mean `size`?"),
        ("(1", 2, "not closed"),
        ("'abc", 0, "end it with '"),
        ("'a\\q'", 2, r"\\"),
        ("[1 2]", 3, "`,`"),
        ("{'a' 1}", 5, "{'key': value}"),
        ("a ? b", 5, "one : other"),
        ("", 0, "a value belongs here"),
        ("a.", 2, "a['key']"),
        ("1u", 0, "numbers"),
        ("has(1)", 0, "has(input.name)"),
        ("'a'.trim(1)", 4, "it takes 0"),
        ("a.matches(b)", 10, "literal pattern"),
        ("a.matches('(')", 10, "RE2"),
        ("a.map(1, 2)", 6, "list.all"),
        ("é", 0, "ASCII"),
        ("in", 0, "a value belongs here"),
    ] {
        let fault = refused(source);
        assert!(!fault.is_too_complex(), "{source}");
        assert_eq!(fault.offset(), offset, "{source}: {fault}");
        assert!(fault.to_string().contains(hint), "{source}: {fault}");
    }
}

#[test]
fn expressions_can_be_shared_between_threads() {
    fn shareable<T: Clone + Send + Sync + fmt::Debug>() {}
    shareable::<Expression>();
    shareable::<Template>();
}

#[test]
fn a_value_that_would_change_is_an_error_where_it_is_computed_with() {
    let digits = "7".repeat(5_000);
    let rows = [
        "\"half \\ud83d\"",
        "1e400",
        "1e-400",
        "18446744073709551616",
        "9223372036854775808",
        "-9223372036854775809",
        digits.as_str(),
        "{\"a\\ud83d\": 1}",
    ];
    for json in rows {
        let payload = format!("{{\"x\": {json}, \"n\": 1}}");
        let mut scope = Scope::default();
        scope.set(&["input"], payload.as_str());
        let path = Expression::compile("input.x").unwrap();
        assert_eq!(path.evaluate_json(&scope).unwrap(), json, "a path is cut out as it is written");
        assert_eq!(Expression::compile("input.n + 1").unwrap().evaluate_json(&scope).unwrap(), "2", "{json}");
        let computed = Expression::compile("[input.x]").unwrap().evaluate_json(&scope);
        assert!(matches!(computed, Err(EvalError::BadValue { .. })), "{json}: {computed:?}");
        let whole = Expression::compile("size(input) == 2").unwrap().evaluate_bool(&scope);
        assert!(matches!(whole, Err(EvalError::BadValue { .. })), "{json}: {whole:?}");
    }
    for (json, kept) in
        [("0.0", "[0.0]"), ("0e-400", "[0.0]"), ("1e300", "[1e300]"), ("9223372036854775807", "[9223372036854775807]")]
    {
        let mut scope = Scope::default();
        scope.set(&["input"], json);
        let computed = Expression::compile("[input]").unwrap().evaluate_json(&scope).unwrap().into_owned();
        assert_eq!(computed.replace("1e+300", "1e300"), kept);
    }
}
