//! What a document means once it is read.

use std::collections::BTreeMap;

use super::*;
use crate::contract::{FailureClass, Policy};
use crate::time::Span;

fn step(definition: &Definition, id: &str) -> StepDef {
    definition.step(id).map(|(_, step)| step.clone()).expect(id)
}

#[test]
fn the_example_of_the_interface_is_read_whole() {
    let Parsed { definition, warnings } = parsed(ORDER);
    let ids: Vec<&str> = definition.steps().iter().map(|step| step.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "validate",
            "charge",
            "reserve",
            "manager",
            "label",
            "stock",
            "cool_off",
            "signed",
            "poll",
            "allocated",
            "tell"
        ]
    );
    let codes: Vec<_> = warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(codes, [FaultCode::ExternalWithoutReconcile], "only the push: {}", listed(&warnings));
    assert_eq!(definition.deadline, Some(Span::from_secs(86_400)));
    assert_eq!(definition.sensitive, ["/order/card"]);
    assert!(definition.saga && definition.input.is_some() && definition.output.is_some());
}

#[test]
fn a_step_without_after_comes_after_the_one_before_it_and_finally_steps_follow_each_other() {
    let text = "workflow: w\nsteps: [{id: a, sleep: 1s}, {id: b, sleep: 1s}, {id: c, after: [], sleep: 1s}]\n\
                finally: [{id: y, task: t}, {id: z, task: t}]";
    let definition = parsed(text).definition;
    let after: Vec<Vec<usize>> = definition.steps().iter().map(|step| step.after.clone()).collect();
    assert_eq!(after, [vec![], vec![0], vec![], vec![], vec![3]]);
    let before: Vec<Vec<usize>> = definition.steps().iter().map(|step| step.before.clone()).collect();
    assert_eq!(before, [vec![1], vec![], vec![], vec![4], vec![]]);
    let finally: Vec<bool> = definition.steps().iter().map(|step| step.finally).collect();
    assert_eq!(finally, [false, false, false, true, true]);
}

#[test]
fn defaults_are_inherited_field_by_field() {
    let text = "workflow: w\n\
        defaults: {queue: slow, timeout: 9s, lease: 8s, retry: {max_attempts: 7, first: 2s}, recovery: {fatal: hold, lost: fail}}\n\
        steps:\n  - {id: a, task: t, retry: {first: 3s}, recovery: {lost: ask}, reconcile: p}\n  - {id: b, task: t, queue: fast, timeout: 1s, lease: 2s}";
    let definition = parsed(text).definition;
    let a = step(&definition, "a");
    assert_eq!((a.queue.as_str(), a.timeout, a.lease), ("slow", Some(Span::from_secs(9)), Some(Span::from_secs(8))));
    let retry = RetryPolicy { max_attempts: 7, first: Span::from_secs(3), ..RetryPolicy::default() };
    assert_eq!(a.retry, retry);
    assert_eq!(a.recovery, BTreeMap::from([(FailureClass::Lost, Policy::Ask), (FailureClass::Fatal, Policy::Hold)]));
    let b = step(&definition, "b");
    assert_eq!((b.queue.as_str(), b.timeout, b.lease), ("fast", Some(Span::from_secs(1)), Some(Span::from_secs(2))));
    let probe = a.reconcile.expect("it has a probe");
    assert_eq!((probe.queue.as_str(), probe.retry.max_attempts, probe.effect), ("slow", 7, EffectKind::None));
}

#[test]
fn an_effect_follows_from_the_method_unless_it_is_written() {
    for (method, effect) in [
        ("GET", EffectKind::None),
        ("HEAD", EffectKind::None),
        ("POST", EffectKind::External),
        ("PATCH", EffectKind::External),
        ("PUT", EffectKind::Idempotent),
        ("DELETE", EffectKind::Idempotent),
    ] {
        let text = of_steps(&format!("  - {{id: a, http: {{method: {method}, url: https://x.y}}}}"));
        assert_eq!(step(&parsed(&text).definition, "a").effect, effect, "{method}");
    }
    let written = of_steps("  - {id: a, effect: none, http: {method: POST, url: https://x.y}}");
    assert_eq!(step(&parsed(&written).definition, "a").effect, EffectKind::None);
    assert_eq!(step(&parsed(&of_steps("  - {id: a, task: t}")).definition, "a").effect, EffectKind::None);
}

#[test]
fn the_deadline_of_a_wait_may_stand_inside_it_or_beside_it() {
    for text in [
        "  - {id: a, approval: {deadline: 2h, at_deadline: warn}}",
        "  - {id: a, approval: {}, deadline: 2h, at_deadline: warn}",
        "  - {id: a, signal: {name: s, deadline: 2h, at_deadline: warn}}",
        "  - {id: a, signal: s, deadline: 2h, at_deadline: warn}",
        "  - {id: a, any: [s, t], deadline: 2h, at_deadline: warn}",
    ] {
        let a = step(&parsed(&of_steps(text)).definition, "a");
        assert_eq!((a.deadline, a.at_deadline), (Some(Span::from_secs(7_200)), Some(AtDeadline::Warn)), "{text}");
    }
    let escalated = of_steps("  - {id: a, approval: {deadline: 2h, at_deadline: {escalate: [role:boss]}}}");
    let a = step(&parsed(&escalated).definition, "a");
    assert_eq!(a.at_deadline, Some(AtDeadline::Escalate(vec!["role:boss".into()])));
}

#[test]
fn signals_wait_for_one_any_or_all() {
    for (text, mode, names) in [
        ("signal: s", WaitMode::One, vec!["s"]),
        ("signal: {name: s, schema: {type: object}}", WaitMode::One, vec!["s"]),
        ("any: [s, t]", WaitMode::Any, vec!["s", "t"]),
        ("signal: {all: [s, t]}", WaitMode::All, vec!["s", "t"]),
    ] {
        let a = step(&parsed(&of_steps(&format!("  - {{id: a, {text}}}"))).definition, "a");
        let Action::Signal(wait) = a.action else { panic!("{text}") };
        assert_eq!((wait.mode, wait.names), (mode, names.into_iter().map(str::to_owned).collect()), "{text}");
    }
}

#[test]
fn a_loop_has_its_defaults() {
    let text = of_steps("  - {id: a, for_each: input, task: t}\n  - {id: b, repeat: {until: output}, task: t}");
    let definition = parsed(&text).definition;
    let each = step(&definition, "a").for_each.expect("it loops");
    assert_eq!((each.name.as_str(), each.parallel, each.join), ("item", 10, Join::All));
    let repeat = step(&definition, "b").repeat.expect("it loops");
    assert_eq!((repeat.every, repeat.max, repeat.collect), (Span::ZERO, 100, false));
}

#[test]
fn joins_are_read_in_all_their_forms() {
    for (text, join) in [
        ("all", Join::All),
        ("any", Join::Any),
        ("{at_least: 3}", Join::AtLeast(3)),
        ("{min_success: 0.9}", Join::MinSuccess(0.9)),
        ("{min_success: 1}", Join::MinSuccess(1.0)),
    ] {
        let text = of_steps(&format!("  - {{id: a, for_each: input, join: {text}, task: t}}"));
        assert_eq!(step(&parsed(&text).definition, "a").for_each.map(|each| each.join), Some(join));
    }
}

#[test]
fn jumps_go_back_with_a_limit_and_forward_without() {
    let text = of_steps(
        "  - {id: a, task: t}\n  - {id: b, task: t, on_result: [{when: output.x, go_to: a, max_visits: 2}, {then: {go_to: c}}]}\n  \
         - {id: c, approval: {deadline: 1h, on_reject: {go_to: a, max_visits: 3}}}",
    );
    let definition = parsed(&text).definition;
    let thens: Vec<Then> = step(&definition, "b").on_result.iter().map(|case| case.then).collect();
    let jump = |step, max_visits| Then::GoTo(Jump { step, max_visits });
    assert_eq!(thens, [jump(0, Some(2)), jump(2, None)]);
    let Action::Approval(approval) = step(&definition, "c").action else { panic!("an approval") };
    assert_eq!(approval.on_reject, OnReject::GoTo(Jump { step: 0, max_visits: Some(3) }));
}

#[test]
fn an_undo_is_idempotent_unless_it_is_written_otherwise() {
    let text = "workflow: w\nsaga: true\nsteps:\n  - {id: a, task: t, compensate: u}\n  \
                - {id: b, task: t, compensate: {task: u, effect: external, reconcile: p, with: {id: '${{ output.id }}'}}}";
    let definition = parsed(text).definition;
    assert_eq!(step(&definition, "a").compensate.map(|undo| undo.effect), Some(EffectKind::Idempotent));
    let undo = step(&definition, "b").compensate.expect("it can be undone");
    assert_eq!(undo.effect, EffectKind::External);
    assert_eq!(undo.reconcile.map(|probe| probe.handler.as_str().to_owned()), Some("p".into()));
}

#[test]
fn coded_bodies_are_declared() {
    let definition = parsed("workflow: w\ncoded: { revision: \"3\" }").definition;
    assert!(matches!(definition.body, Body::Coded { revision } if revision == "3"));
}

#[test]
fn yes_no_and_on_are_text_as_yaml_1_2_says() {
    let text = of_steps(
        "  - {id: a, task: t, with: {a: yes, b: no, c: on, d: true, e: ~, f: 0x10, g: 1_000, h: 0o17, i: 1e3, j: 012}}",
    );
    let definition = parsed(&text).definition;
    let Action::Task { with: Some(with), .. } = step(&definition, "a").action else { panic!("a task") };
    let json = with.render(&crate::expression::Scope::default()).expect("it is constant");
    assert_eq!(json, r#"{"a":"yes","b":"no","c":"on","d":true,"e":null,"f":16,"g":"1_000","h":15,"i":1000.0,"j":12}"#);
}

#[test]
fn json_is_read_as_the_yaml_that_it_is() {
    let text = "{\"workflow\":\"w\",\n\t\"steps\": [\n\t\t{\"id\": \"a\", \"title\": \"\\ud83d\\ude00 \\u00e9\\/\", \"task\": \"t\"}\n\t]\n}";
    assert_eq!(step(&parsed(text).definition, "a").title.as_deref(), Some("😀 é/"));
}

#[test]
fn anchors_and_merge_keys_save_typing() {
    let text = "workflow: w\nsteps:\n  - &first {id: a, task: t, retry: &retry {max_attempts: 2}}\n  \
                - {id: b, task: u, retry: {<<: *retry, first: 5s}}\n  - {<<: [*first], id: c}";
    let definition = parsed(text).definition;
    assert_eq!(step(&definition, "b").retry.max_attempts, 2);
    assert_eq!(step(&definition, "b").retry.first, Span::from_secs(5));
    assert!(matches!(step(&definition, "c").action, Action::Task { handler, .. } if handler.as_str() == "t"));
}

#[test]
fn conditions_are_written_with_or_without_marks() {
    let text = of_steps("  - {id: a, task: t, when: true, requires: \"${{ input.x }}\", verify: output.ok}");
    let a = step(&parsed(&text).definition, "a");
    assert_eq!(a.when.map(|when| when.source().to_owned()), Some("true".into()));
    assert_eq!(a.requires.map(|requires| requires.source().to_owned()), Some("input.x".into()));
}

#[test]
fn sleeps_last_a_while_or_until_a_time() {
    for text in ["until: input.at", "sleep: { until: input.at }"] {
        let a = step(&parsed(&of_steps(&format!("  - {{id: a, {text}}}"))).definition, "a");
        assert!(matches!(a.action, Action::Sleep(SleepFor::Until(_))), "{text}");
    }
}

#[test]
fn only_a_task_and_a_request_are_carried_out_as_tasks_and_only_a_request_by_the_engine_itself() {
    let text = "workflow: w\nsteps:\n  - { id: task, task: work }\n  - { id: http, http: { url: 'https://example.com' } }\n  \
                - { id: approval, approval: { title: ok, approvers: [ana] } }\n  - { id: child, child: other, wait: false }\n  \
                - { id: join_child, join_child: child }\n  - { id: sleep, sleep: 1s }\n  - { id: signal, signal: go }\n";
    let definition = parsed(text).definition;
    let has_task = ["task", "http"];
    for def in definition.steps() {
        let performer = def.action.performer();
        assert_eq!(def.action.name(), def.id);
        assert_eq!(performer.has_task(), has_task.contains(&def.id.as_str()), "{}", def.id);
        assert_eq!(performer.handler().is_some(), performer.has_task(), "{}", def.id);
        assert_eq!(performer.own_queue().is_some(), def.id == "http", "{}", def.id);
    }
    assert_eq!(step(&definition, "task").action.performer().handler(), Some("work".into()));
    assert_eq!(step(&definition, "http").action.performer().handler(), Some(PUSH.into()));
}
