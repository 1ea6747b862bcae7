//! Every fault is named with its line, its path and what would be right, and all of them at once.

use super::*;
use FaultCode::*;

/// A document with exactly one fault: its code, line, path, and a part of the message or the hint.
type Row = (&'static str, FaultCode, u32, &'static str, &'static str);

fn check(rows: &[Row]) {
    for (text, code, line, path, says) in rows {
        let error = refused(text);
        let faults = error.faults();
        let told = listed(faults);
        assert_eq!(faults.len(), 1, "{text}\n{told}");
        let found = (faults[0].code, faults[0].line, faults[0].path.as_str());
        assert_eq!(found, (*code, Some(*line), *path), "{text}\n{told}");
        assert!(told.contains(says), "{text}\n{told}");
        assert!(faults[0].column.is_some());
    }
}

/// The same for steps alone, the first of which stands on line 3.
fn check_steps(rows: &[Row]) {
    for (steps, code, line, path, says) in rows {
        let text = of_steps(steps).leak();
        check(&[(text, *code, *line, path, says)]);
    }
}

#[test]
fn yaml_that_is_none() {
    #[rustfmt::skip]
    check(&[
        ("workflow: w\nsteps: [", YamlSyntax, 2, "/steps/0", ""),
        ("workflow: w\n\tsteps: []", YamlSyntax, 1, "/workflow", "tab"),
        ("workflow: w\ncoded: {revision: a}\n---\nworkflow: v", YamlSyntax, 3, "", "second document"),
        ("", MissingField, 1, "", "empty"),
        ("# nothing\n", MissingField, 1, "", "empty"),
        ("workflow: w\ncoded: {revision: a}\nworkflow: v", DuplicateKey, 3, "/workflow", "twice"),
        ("- a", WrongType, 1, "", "mapping"),
        ("workflow: w\n? [a]\n: b\ncoded: {revision: a}", WrongType, 2, "", "key"),
        ("workflow: w\ncoded: {revision: a}\ntitle: .nan", OutOfRange, 3, "/title", "quote it"),
    ]);
}

#[test]
fn an_expression_that_yaml_takes_for_its_own_is_to_be_quoted() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - id: a\n    task: t\n    with: ${{ a: b }}\n", UnquotedExpression, 5, "/steps/0/with", "quote it"),
        ("  - id: a\n    task: t\n    when: input.x ? input.y : input.z\n", UnquotedExpression, 5, "/steps/0/when", "quote it"),
        ("  - id: a\n    task: t\n    when: \"a\" == input.b\n", UnquotedExpression, 5, "/steps/0/when", "quote it"),
        ("  - id: a\n    task: t\n    with: { x: ${{ input.y }} }\n", UnquotedExpression, 5, "/steps/0/with", "quote it"),
        ("  - id: a\n    task: t\n    when: !input.done\n", UnquotedExpression, 5, "/steps/0/when", "quote it"),
    ]);
    let braces = refused(&of_steps("  - id: a\n    task: t\n    with: {{ input.y }}\n"));
    assert_eq!((braces.faults()[0].code, braces.faults()[0].line), (UnquotedExpression, Some(5)));
}

#[test]
fn the_fields_of_the_document() {
    #[rustfmt::skip]
    check(&[
        ("steps: [{id: a, task: t}]", MissingField, 1, "/workflow", "`workflow` is missing"),
        ("workflow: Order\ncoded: {revision: a}", BadId, 1, "/workflow", "small letters"),
        ("workflow: 7\ncoded: {revision: a}", WrongType, 1, "/workflow", "text"),
        ("workflow: w\ntittle: x\ncoded: {revision: a}", UnknownField, 2, "/tittle", "did you mean `title`?"),
        ("workflow: w\nlimits: {}\ncoded: {revision: a}", NotSupported, 2, "/limits", "this version does not have"),
        ("workflow: w\nschedules: []\ncoded: {revision: a}", NotSupported, 2, "/schedules", "this version does not have"),
        ("workflow: w\ndeadline: 30\ncoded: {revision: a}", BadDuration, 2, "/deadline", "did you mean `30s`"),
        ("workflow: w\ndeadline: 0s\ncoded: {revision: a}", BadDuration, 2, "/deadline", "longer than nothing"),
        ("workflow: w\nsaga: yes\ncoded: {revision: a}", WrongType, 2, "/saga", "true or false"),
        ("workflow: w\ninput: {type: nothing}\ncoded: {revision: a}", BadSchema, 2, "/input", "JSON Schema"),
        ("workflow: w\ninput: object\ncoded: {revision: a}", WrongType, 2, "/input", "JSON Schema"),
        ("workflow: w\nsensitive: [card]\ncoded: {revision: a}", BadPointer, 2, "/sensitive/0", "/order/card"),
        ("workflow: w\nsensitive: [/a~2]\ncoded: {revision: a}", BadPointer, 2, "/sensitive/0", "/order/card"),
        ("workflow: w\ncoded: {revision: 3}", WrongType, 2, "/coded/revision", "quote it"),
        ("workflow: w\ncoded: {}", MissingField, 2, "/coded/revision", "missing"),
        ("workflow: w\ncoded: {revision: a}\nsteps: []", DoesNotFit, 3, "/steps", "beside `coded`"),
        ("workflow: w\ncoded: {revision: a}\noutput: 1", DoesNotFit, 3, "/output", "beside `coded`"),
        ("workflow: w", NoSteps, 1, "/steps", "missing"),
        ("workflow: w\nsteps: []", NoSteps, 2, "/steps", "no steps"),
        ("workflow: w\nsteps: {}", WrongType, 2, "/steps", "a list"),
        ("workflow: w\nsteps: [a]", WrongType, 2, "/steps/0", "a mapping"),
        ("workflow: w\ndefaults: {retries: 1}\ncoded: {revision: a}", UnknownField, 2, "/defaults/retries", "known here: queue"),
        ("workflow: w\ndefaults: {recovery: {fatal: compensate}}\ncoded: {revision: a}", NeedsSaga, 2, "/defaults/recovery/fatal", "saga: true"),
    ]);
    let pointers = format!("workflow: w\nsensitive: [{}]\ncoded: {{revision: a}}", "/a, ".repeat(201));
    check(&[(pointers.leak(), TooLong, 2, "/sensitive", "at most 200")]);
    let long = format!("workflow: w\ntitle: {}\ncoded: {{revision: a}}", "x".repeat(201));
    check(&[(long.leak(), TooLong, 2, "/title", "at most 200")]);
}

#[test]
fn ids_and_order() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {task: t}", MissingField, 3, "/steps/0/id", "missing"),
        ("  - {id: Charge, task: t}", BadId, 3, "/steps/0/id", "small letter"),
        ("  - {id: body, task: t}", BadId, 3, "/steps/0/id", "reserved"),
        ("  - {id: reserve.3, task: t}", BadId, 3, "/steps/0/id", "path"),
        ("  - {id: a, task: t}\n  - {id: a, task: t}", DuplicateId, 4, "/steps/1/id", "/steps/0"),
        ("  - {id: a, task: t}\nfinally:\n  - {id: a, task: t}", DuplicateId, 5, "/finally/0/id", "/steps/0"),
        ("  - {id: charge, task: t}\n  - {id: b, after: [chrage], task: t}", UnknownStep, 4, "/steps/1/after/0", "did you mean `charge`?"),
        ("  - {id: a, task: t}\n  - {id: b, after: [c], task: t}\nfinally: [{id: c, task: t}]", UnknownStep, 4, "/steps/1/after/0", "`finally` step"),
        ("  - {id: a, after: b, task: t}\n  - {id: b, after: [], task: t}", WrongType, 3, "/steps/0/after", "a list"),
        ("  - {id: a, after: [a], task: t}", Cycle, 3, "/steps/0", "a → a"),
        ("  - {id: x, task: t}\n  - {id: a, after: [x, c], task: t}\n  - {id: b, task: t}\n  - {id: c, task: t}\n  - {id: d, task: t}", Cycle, 4, "/steps/1", "a → b → c → a"),
        ("  - {id: a, task: t}\nfinally:\n  - {id: b, after: [a], task: t}", DoesNotFit, 5, "/finally/0/after", "one after the other"),
    ]);
    let two = refused(&of_steps(
        "  - {id: a, after: [b], task: t}\n  - {id: b, task: t}\n  - {id: c, after: [d], task: t}\n  - {id: d, task: t}",
    ));
    assert_eq!(two.faults().len(), 2, "each cycle is told: {}", listed(two.faults()));
    let many: String = (0..1_001).map(|n| format!("  - {{id: s{n}, task: t}}\n")).collect();
    check_steps(&[(many.leak(), TooManySteps, 1_003, "/steps/1000", "at most 1000")]);
}

#[test]
fn a_step_does_exactly_one_thing() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a}", NoAction, 3, "/steps/0", "add one of task"),
        ("  - {id: a, task: t, sleep: 1s}", TwoActions, 3, "/steps/0", "`task` and `sleep`"),
        ("  - {id: a, taks: t, sleep: 1s}", UnknownField, 3, "/steps/0/taks", "did you mean `task`?"),
        ("  - {id: a, task: \"t ${{ input.x }}\"}", BadValue, 3, "/steps/0/task", "no expression may stand here"),
        ("  - {id: a, task: ''}", BadValue, 3, "/steps/0/task", "empty"),
        ("  - {id: a, sleep: 1s, with: {}}", DoesNotFit, 3, "/steps/0/with", "`with` is the input"),
        ("  - {id: a, task: t, wait: true}", DoesNotFit, 3, "/steps/0/wait", "belongs to `child`"),
        ("  - {id: a, task: t, schema: {}}", DoesNotFit, 3, "/steps/0/schema", "output_schema"),
        ("  - {id: a, sleep: 1s, effect: external}", DoesNotFit, 3, "/steps/0/effect", "`task` or `http`"),
        ("  - {id: a, sleep: 1s, reconcile: p}", DoesNotFit, 3, "/steps/0/reconcile", "`task` or `http`"),
        ("  - {id: a, sleep: 1s, connection: a/b}", DoesNotFit, 3, "/steps/0/connection", "`task` or `http`"),
        ("  - {id: a, sleep: 1s, queue: q}", DoesNotFit, 3, "/steps/0/queue", "worker"),
        ("  - {id: a, sleep: 1s, lease: 1s}", DoesNotFit, 3, "/steps/0/lease", "worker"),
        ("  - {id: a, sleep: 1s, timeout: 1s}", DoesNotFit, 3, "/steps/0/timeout", "deadline"),
        ("  - {id: a, sleep: 1s, retry: {}}", DoesNotFit, 3, "/steps/0/retry", "not tried again"),
        ("  - {id: a, sleep: 0s}", BadDuration, 3, "/steps/0/sleep", "longer than nothing"),
        ("  - {id: a, task: t, effect: extern}", BadValue, 3, "/steps/0/effect", "one of none, idempotent, external"),
        ("  - {id: a, task: t, connection: stripe}", BadValue, 3, "/steps/0/connection", "tool/account"),
        ("  - {id: a, task: t, output_schema: {type: 1}}", BadSchema, 3, "/steps/0/output_schema", "JSON Schema"),
        ("  - {id: a, task: t, timeout: 10 s}", BadDuration, 3, "/steps/0/timeout", "500ms"),
        ("  - {id: a, task: t, timeout: [1s]}", WrongType, 3, "/steps/0/timeout", "a duration"),
        ("  - {id: a, child: Other}", BadId, 3, "/steps/0/child", "workflow"),
        ("  - {id: a, child: c, version: 0}", OutOfRange, 3, "/steps/0/version", "from 1"),
        ("  - {id: a, child: c, on_cancel: kill}", BadValue, 3, "/steps/0/on_cancel", "one of cancel, leave"),
        ("  - {id: a, any: []}", BadValue, 3, "/steps/0/any", "no signal"),
        ("  - {id: a, any: [s, s]}", BadValue, 3, "/steps/0/any/1", "twice"),
        ("  - {id: a, signal: {name: s, all: [t]}}", BadValue, 3, "/steps/0/signal", "one of name, any and all"),
        ("  - {id: a, task: t, reconcile: {with: {}}}", MissingField, 3, "/steps/0/reconcile/task", "missing"),
        ("  - {id: a, task: t, reconcile: {task: p, effect: none}}", UnknownField, 3, "/steps/0/reconcile/effect", "known here"),
    ]);
}

#[test]
fn loops() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, task: t, for_each: input, parallel: 0}", OutOfRange, 3, "/steps/0/parallel", "from 1 to 1000"),
        ("  - {id: a, task: t, for_each: input, parallel: 1001}", OutOfRange, 3, "/steps/0/parallel", "from 1 to 1000"),
        ("  - {id: a, task: t, for_each: input, join: {min_success: 0}}", OutOfRange, 3, "/steps/0/join/min_success", "above 0 up to 1"),
        ("  - {id: a, task: t, for_each: input, join: {min_success: 1.1}}", OutOfRange, 3, "/steps/0/join/min_success", "above 0 up to 1"),
        ("  - {id: a, task: t, for_each: input, join: {at_least: 0}}", OutOfRange, 3, "/steps/0/join/at_least", "from 1"),
        ("  - {id: a, task: t, for_each: input, join: {}}", BadValue, 3, "/steps/0/join", "at_least"),
        ("  - {id: a, task: t, for_each: input, join: some}", BadValue, 3, "/steps/0/join", "one of all, any"),
        ("  - {id: a, task: t, for_each: input, as: input}", BadId, 3, "/steps/0/as", "choose another"),
        ("  - {id: a, task: t, for_each: input, as: My-Item}", BadId, 3, "/steps/0/as", "small letters"),
        ("  - {id: a, task: t, for_each: [1, 2]}", WrongType, 3, "/steps/0/for_each", "quote it"),
        ("  - {id: a, task: t, parallel: 3}", DoesNotFit, 3, "/steps/0/parallel", "without `for_each`"),
        ("  - {id: a, task: t, for_each: input, repeat: {until: output}}", DoesNotFit, 3, "/steps/0", "child workflow"),
        ("  - {id: a, child: c, wait: false, for_each: input}", DoesNotFit, 3, "/steps/0", "not waited for"),
        ("  - {id: a, task: t, repeat: {until: output.done, max: 0}}", OutOfRange, 3, "/steps/0/repeat/max", "from 1"),
        ("  - {id: a, child: c, wait: false}\n  - {id: b, join_child: a, for_each: input}", DoesNotFit, 4, "/steps/1", "joined once"),
    ]);
}

#[test]
fn jumps_and_joins() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, task: t}\n  - {id: b, task: t, on_result: [{go_to: a}]}", NeedsMaxVisits, 4, "/steps/1/on_result/0/go_to", "max_visits: 3"),
        ("  - {id: a, task: t, on_result: [{go_to: a}]}", NeedsMaxVisits, 3, "/steps/0/on_result/0/go_to", "max_visits: 3"),
        ("  - {id: a, task: t, on_result: [{go_to: b, max_visits: 2}]}\n  - {id: b, task: t}", DoesNotFit, 3, "/steps/0/on_result/0/go_to", "comes after"),
        ("  - {id: a, task: t}\n  - {id: b, task: t, on_result: [{go_to: a, max_visits: 0}]}", OutOfRange, 4, "/steps/1/on_result/0/max_visits", "from 1"),
        ("  - {id: a, task: t, on_result: [{go_to: b}]}\n  - {id: b, after: [], task: t}", BadJump, 3, "/steps/0/on_result/0/go_to", "beside"),
        ("  - {id: a, task: t, on_result: [{go_to: z}]}", UnknownStep, 3, "/steps/0/on_result/0/go_to", "no step `z`"),
        ("  - {id: a, task: t, on_result: [{go_to: z}]}\nfinally: [{id: z, task: t}]", BadJump, 3, "/steps/0/on_result/0/go_to", "finally"),
        ("  - {id: a, task: t, for_each: input, on_result: [{go_to: b}]}\n  - {id: b, task: t}", BadJump, 3, "/steps/0/on_result/0/go_to", "child workflow"),
        ("  - {id: a, task: t, repeat: {until: output}, on_result: [{go_to: b}]}\n  - {id: b, task: t}", BadJump, 3, "/steps/0/on_result/0/go_to", "child workflow"),
        ("  - {id: a, task: t, on_result: [{then: go_to}]}", BadValue, 3, "/steps/0/on_result/0/then", "go_to: STEP"),
        ("  - {id: a, task: t, on_result: [{then: stop}]}", BadValue, 3, "/steps/0/on_result/0/then", "one of complete, fail, retry, skip"),
        ("  - {id: a, task: t, on_result: [{when: output.x}]}", MissingField, 3, "/steps/0/on_result/0/then", "missing"),
        ("  - {id: a, task: t, on_result: [{then: skip, max_visits: 2}]}", DoesNotFit, 3, "/steps/0/on_result/0/max_visits", "without `go_to`"),
        ("  - {id: a, task: t, on_result: [{then: skip}, {when: output.x, then: fail}]}", DoesNotFit, 3, "/steps/0/on_result/1", "never reached"),
        ("  - {id: a, task: t}\n  - {id: b, approval: {on_reject: {go_to: a}}}", NeedsMaxVisits, 4, "/steps/1/approval/on_reject/go_to", "max_visits"),
        ("  - {id: a, task: t}\n  - {id: b, join_child: a}", BadJoin, 4, "/steps/1/join_child", "wait: false"),
        ("  - {id: a, child: c}\n  - {id: b, join_child: a}", BadJoin, 4, "/steps/1/join_child", "wait: false"),
        ("  - {id: a, child: c, wait: false}\n  - {id: b, after: [], join_child: a}", BadJoin, 4, "/steps/1/join_child", "add `a` to `after`"),
        ("  - {id: a, join_child: zz}", UnknownStep, 3, "/steps/0/join_child", "no step `zz`"),
    ]);
}

#[test]
fn approvals_and_deadlines() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, approval: {quorum: 0}}", OutOfRange, 3, "/steps/0/approval/quorum", "from 1"),
        ("  - {id: a, approval: {approvers: [ana, bob], quorum: 3}}", OutOfRange, 3, "/steps/0/approval/quorum", "only 2 may"),
        ("  - {id: a, approval: {approvers: ['role:']}}", BadValue, 3, "/steps/0/approval/approvers/0", "role:manager"),
        ("  - {id: a, approval: {on_reject: stop}}", BadValue, 3, "/steps/0/approval/on_reject", "one of fail, warn, continue"),
        ("  - {id: a, approval: {form: {type: 7}}}", BadSchema, 3, "/steps/0/approval/form", "JSON Schema"),
        ("  - {id: a, approval: {at_deadline: fail}}", DoesNotFit, 3, "/steps/0/approval/at_deadline", "without `deadline`"),
        ("  - {id: a, task: t, at_deadline: fail}", DoesNotFit, 3, "/steps/0/at_deadline", "without `deadline`"),
        ("  - {id: a, task: t, deadline: 1h, at_deadline: approve}", DoesNotFit, 3, "/steps/0/at_deadline", "approvals alone"),
        ("  - {id: a, signal: s, deadline: 1h, at_deadline: {escalate: [ana]}}", DoesNotFit, 3, "/steps/0/at_deadline", "approvals alone"),
        ("  - {id: a, approval: {deadline: 1h, at_deadline: escalate}}", BadValue, 3, "/steps/0/approval/at_deadline", "needs people"),
        ("  - {id: a, approval: {deadline: 1h, at_deadline: {escalate: []}}}", BadValue, 3, "/steps/0/approval/at_deadline", "nobody"),
        ("  - {id: a, approval: {deadline: 1h}, deadline: 2h}", DoesNotFit, 3, "/steps/0/deadline", "twice"),
        ("  - {id: a, approval: {apprvers: []}}", UnknownField, 3, "/steps/0/approval/apprvers", "did you mean `approvers`?"),
    ]);
}

#[test]
fn retries_recovery_and_sagas() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, task: t, retry: {max_attempts: 0}}", OutOfRange, 3, "/steps/0/retry/max_attempts", "from 1 to 1000"),
        ("  - {id: a, task: t, retry: {max_attempts: 1001}}", OutOfRange, 3, "/steps/0/retry/max_attempts", "from 1 to 1000"),
        ("  - {id: a, task: t, retry: {max_attempts: 2.5}}", OutOfRange, 3, "/steps/0/retry/max_attempts", "whole number"),
        ("  - {id: a, task: t, retry: {factor: 0.5}}", OutOfRange, 3, "/steps/0/retry/factor", "from 1 up to 100"),
        ("  - {id: a, task: t, retry: {factor: 101}}", OutOfRange, 3, "/steps/0/retry/factor", "from 1 up to 100"),
        ("  - {id: a, task: t, retry: {jitter: 1.5}}", OutOfRange, 3, "/steps/0/retry/jitter", "from 0 up to 1"),
        ("  - {id: a, task: t, retry: {first: 2}}", BadDuration, 3, "/steps/0/retry/first", "2s"),
        ("  - {id: a, task: t, retry: {first: 2m}}", OutOfRange, 3, "/steps/0/retry/first", "raise `max`"),
        ("  - {id: a, task: t, recovery: {permision: fail}}", UnknownField, 3, "/steps/0/recovery/permision", "did you mean `permission`?"),
        ("  - {id: a, task: t, recovery: {fatal: panic}}", BadValue, 3, "/steps/0/recovery/fatal", "one of retry"),
        ("  - {id: a, task: t, recovery: {fatal: wait_on_auth}}", BadValue, 3, "/steps/0/recovery/fatal", "one of retry"),
        ("  - {id: a, task: t, recovery: {lost: reconcile}}", DoesNotFit, 3, "/steps/0/recovery/lost", "no probe"),
        ("  - {id: a, task: t, reconcile: p, recovery: {auth: reconcile}}", DoesNotFit, 3, "/steps/0/recovery/auth", "nothing to reconcile"),
        ("  - {id: a, task: t, recovery: {fatal: compensate}}", NeedsSaga, 3, "/steps/0/recovery/fatal", "saga: true"),
        ("  - {id: a, task: t, compensate: u}", NeedsSaga, 3, "/steps/0/compensate", "saga: true"),
        ("  - {id: a, task: t, on_failure: compensate}", NeedsSaga, 3, "/steps/0/on_failure", "saga: true"),
        ("  - {id: a, task: t}\nfinally: [{id: b, task: t, on_failure: fail}]", DoesNotFit, 4, "/finally/0/on_failure", "always a warning"),
        ("  - {id: a, task: t}\nsaga: true\nfinally: [{id: b, task: t, compensate: u}]", DoesNotFit, 5, "/finally/0/compensate", "not undone"),
    ]);
}

#[test]
fn requests() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, http: {}}", MissingField, 3, "/steps/0/http/url", "missing"),
        ("  - {id: a, http: {url: ftp://x}}", BadValue, 3, "/steps/0/http/url", "https://"),
        ("  - {id: a, http: {url: 'https://x.y/a b'}}", BadValue, 3, "/steps/0/http/url", "no spaces"),
        ("  - {id: a, http: {url: https://x.y, method: post}}", BadValue, 3, "/steps/0/http/method", "POST"),
        ("  - {id: a, http: {url: https://x.y, body: 1}}", DoesNotFit, 3, "/steps/0/http/body", "GET"),
        ("  - {id: a, http: {url: https://x.y, answer: later}}", BadValue, 3, "/steps/0/http/answer", "callback"),
        ("  - {id: a, http: {url: https://x.y, headers: {Host: z}}}", BadHeader, 3, "/steps/0/http/headers/Host", "set for you"),
        ("  - {id: a, http: {url: https://x.y, headers: {Content-Length: 5}}}", BadHeader, 3, "/steps/0/http/headers/Content-Length", "set for you"),
        ("  - {id: a, http: {url: https://x.y, headers: {Abide-Run-Id: 5}}}", BadHeader, 3, "/steps/0/http/headers/Abide-Run-Id", "set for you"),
        ("  - {id: a, http: {url: https://x.y, headers: {\"X Y\": z}}}", BadHeader, 3, "/steps/0/http/headers/X Y", "not the name"),
        ("  - {id: a, http: {url: https://x.y, headers: {X: \"a\\r\\nB: c\"}}}", BadHeader, 3, "/steps/0/http/headers/X", "line breaks"),
        ("  - {id: a, http: {url: https://x.y, headers: {X: a, x: b}}}", BadHeader, 3, "/steps/0/http/headers/x", "twice"),
        ("  - {id: a, http: {url: https://x.y, headers: {X: [a]}}}", WrongType, 3, "/steps/0/http/headers/X", "text"),
    ]);
}

#[test]
fn expressions_and_their_names() {
    #[rustfmt::skip]
    check_steps(&[
        ("  - {id: a, task: t, when: input.x >}", BadExpression, 3, "/steps/0/when", ""),
        ("  - {id: a, task: t, with: {x: [1, '${{ input. }}']}}", BadExpression, 3, "/steps/0/with/x/1", ""),
        ("  - {id: a, task: t, when: '${{ input.x }} && ${{ input.y }}'}", BadExpression, 3, "/steps/0/when", "without the inner"),
        ("  - {id: a, task: t, when: inptu.x}", NameNotAllowed, 3, "/steps/0/when", "did you mean `input`?"),
        ("  - {id: a, task: t, when: output.x}", NameNotAllowed, 3, "/steps/0/when", "verify"),
        ("  - {id: a, task: t, verify: failure.code}", NameNotAllowed, 3, "/steps/0/verify", "on_result"),
        ("  - {id: a, task: t, with: '${{ item }}'}", NameNotAllowed, 3, "/steps/0/with", "`for_each`"),
        ("  - {id: a, task: t, with: '${{ index }}'}", NameNotAllowed, 3, "/steps/0/with", "`for_each`"),
        ("  - {id: a, task: t, for_each: input, as: line, with: '${{ item }}'}", NameNotAllowed, 3, "/steps/0/with", "called `line`"),
        ("  - {id: a, task: t, for_each: input, when: item.x}", NameNotAllowed, 3, "/steps/0/when", "read once"),
        ("  - {id: a, task: t, with: '${{ previous.output }}'}", NameNotAllowed, 3, "/steps/0/with", "`repeat`"),
        ("  - {id: a, task: t, repeat: {until: output}, with: '${{ previous.state }}'}", BadReference, 3, "/steps/0/with", "previous.output"),
        ("  - {id: a, task: t, with: '${{ secrets.KEY }}'}", NameNotAllowed, 3, "/steps/0/with", "`http`"),
        ("  - {id: a, task: t, with: '${{ callback.url }}'}", NameNotAllowed, 3, "/steps/0/with", "`http`"),
        ("  - {id: a, http: {url: 'https://x.y/${{ secrets }}'}}", BadReference, 3, "/steps/0/http/url", "secrets.NAME"),
        ("  - {id: a, http: {url: 'https://x.y/${{ callback.url }}'}}", NameNotAllowed, 3, "/steps/0/http/url", "answer: callback"),
        ("  - {id: a, http: {answer: callback, url: 'https://x.y/${{ callback.id }}'}}", BadReference, 3, "/steps/0/http/url", "callback.url"),
        ("  - {id: a, task: t, with: '${{ run.name }}'}", BadReference, 3, "/steps/0/with", "run.id, run.attempt"),
        ("  - {id: a, task: t, with: '${{ run }}'}", BadReference, 3, "/steps/0/with", "run.id, run.attempt"),
        ("  - {id: a, task: t}\n  - {id: b, task: t, with: '${{ steps.a }}'}", BadReference, 4, "/steps/1/with", "steps.a.output"),
        ("  - {id: a, task: t}\n  - {id: b, task: t, with: '${{ steps.a.result }}'}", BadReference, 4, "/steps/1/with", "steps.a.output"),
        ("  - {id: a, task: t}\n  - {id: b, task: t, with: '${{ steps[input.x].output }}'}", BadReference, 4, "/steps/1/with", "name the step"),
        ("  - {id: charge, task: t}\n  - {id: b, task: t, with: '${{ steps.chrage.output }}'}", UnknownStep, 4, "/steps/1/with", "did you mean `charge`?"),
        ("  - {id: a, task: t, with: '${{ steps.b.output }}'}\n  - {id: b, task: t}", StepNotBefore, 3, "/steps/0/with", "add `b` to `after`"),
        ("  - {id: a, task: t}\n  - {id: b, after: [], task: t, when: steps.a.output.x}", StepNotBefore, 4, "/steps/1/when", "add `a` to `after`"),
        ("  - {id: a, task: t, verify: steps.a.output.x}", StepNotBefore, 3, "/steps/0/verify", "itself"),
        ("  - {id: a, task: t}\noutput: '${{ item }}'", NameNotAllowed, 4, "/output", "`for_each`"),
        ("  - {id: a, task: t}\noutput: '${{ steps.b.output }}'", UnknownStep, 4, "/output", "no step `b`"),
    ]);
    parsed(&of_steps(
        "  - {id: a, task: t}\n  - {id: b, after: [], task: t}\nfinally: [{id: c, task: t, with: ['${{ steps.a.state }}', '${{ steps.b.failure }}']}]\noutput: '${{ steps.c.output }}'",
    ));
}

#[test]
fn a_sensitive_value_may_be_worked_with_but_not_written_down() {
    const HEAD: &str = "workflow: w\nsensitive: [/card, /items/0/pin]\nsteps:\n";
    for (steps, path) in [
        ("  - {id: a, approval: {title: 'Card ${{ input.card }}'}}", "/steps/0/approval/title"),
        ("  - {id: a, approval: {subject: {all: '${{ input }}'}}}", "/steps/0/approval/subject/all"),
        ("  - {id: a, approval: {subject: '${{ input.card.number }}'}}", "/steps/0/approval/subject"),
        ("  - {id: a, task: t, connection: 'stripe/${{ input.card }}'}", "/steps/0/connection"),
        ("  - {id: a, until: input.card}", "/steps/0/until"),
        ("  - {id: a, for_each: input.items, approval: {title: '${{ item.pin }}'}}", "/steps/0/approval/title"),
        ("  - {id: a, task: t}\noutput: '${{ input.card }}'", "/output"),
    ] {
        let error = refused(&format!("{HEAD}{steps}"));
        let found: Vec<_> = error.faults().iter().map(|fault| (fault.code, fault.path.as_str())).collect();
        assert_eq!(found, [(SensitiveExposed, path)], "{steps}");
    }
    for steps in [
        "  - {id: a, task: t, with: {c: '${{ input.card }}'}, when: input.card != null, requires: input.card, verify: output == input.card}",
        "  - {id: a, http: {method: PUT, url: 'https://x.y/${{ input.card }}', body: '${{ input }}'}}",
        "  - {id: a, approval: {title: 'Order ${{ input.id }}', subject: '${{ input.items[1].sku }}', deadline: 1h}}",
        "  - {id: a, for_each: input.items, approval: {title: '${{ item.sku }}', deadline: 1h}}",
        "  - {id: a, task: t, reconcile: {task: p, with: '${{ input.card }}'}, repeat: {until: input.card == output}}",
    ] {
        parsed(&format!("{HEAD}{steps}"));
    }
}

#[test]
fn every_fault_is_told_at_once_and_in_the_order_of_the_document() {
    let text = "workflow: W\ntimeout: 3\nsteps:\n  - {id: a, task: t, timeout: 5, retry: {jitter: 2}}\n  \
                - {id: a, when: output.x}\n  - {id: c, after: [nope], sleep: 1}\n";
    let error = refused(text);
    let found: Vec<_> = error.faults().iter().map(|fault| (fault.line.unwrap_or(0), fault.code)).collect();
    let expected = [
        (1, BadId),
        (2, UnknownField),
        (4, BadDuration),
        (4, OutOfRange),
        (5, NoAction),
        (5, DuplicateId),
        (5, NameNotAllowed),
        (6, UnknownStep),
        (6, BadDuration),
    ];
    assert_eq!(found, expected, "{}", listed(error.faults()));
    assert_eq!(error.code(), "definition-invalid");
}

#[test]
fn columns_count_characters_from_one() {
    let error = refused(&of_steps("  - {id: a, title: äöü, task: t, bogus: 1}"));
    let fault = &error.faults()[0];
    assert_eq!((fault.line, fault.column), (Some(3), Some(34)));
}

#[test]
fn every_code_has_a_text_of_its_own() {
    let texts: std::collections::BTreeSet<&str> = FaultCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(texts.len(), FaultCode::ALL.len());
}
