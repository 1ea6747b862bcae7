//! What is odd without being wrong.

use super::*;

fn warned(text: &str) -> Vec<(FaultCode, Option<u32>, String)> {
    parsed(text).warnings.into_iter().map(|warning| (warning.code, warning.line, warning.path)).collect()
}

fn warning(code: FaultCode, line: u32, path: &str) -> Vec<(FaultCode, Option<u32>, String)> {
    vec![(code, Some(line), path.to_owned())]
}

#[test]
fn external_without_reconcile() {
    let text = of_steps("  - {id: a, task: t, effect: external}\n  - {id: b, task: t, effect: external, reconcile: p}");
    assert_eq!(warned(&text), warning(FaultCode::ExternalWithoutReconcile, 3, "/steps/0"));
    let undo = "workflow: w\nsaga: true\nsteps:\n  - {id: a, task: t, compensate: {task: u, effect: external}}";
    assert_eq!(warned(undo), warning(FaultCode::ExternalWithoutReconcile, 4, "/steps/0/compensate"));
}

#[test]
fn a_wait_without_any_deadline() {
    for wait in ["approval: {}", "signal: s", "any: [s, t]", "child: c", "http: {url: https://x.y, answer: callback}"] {
        let text = of_steps(&format!("  - {{id: a, {wait}}}"));
        assert_eq!(warned(&text), warning(FaultCode::WaitWithoutDeadline, 3, "/steps/0"), "{wait}");
        assert_eq!(warned(&of_steps(&format!("  - {{id: a, {wait}, deadline: 1h}}"))), []);
        assert_eq!(warned(&format!("deadline: 1h\n{text}")), [], "the run's deadline ends every wait");
    }
    assert_eq!(warned(&of_steps("  - {id: a, child: c, wait: false}")), [], "nothing is waited for");
}

#[test]
fn a_step_that_joins_only_one_of_several_open_branches() {
    let open = of_steps(
        "  - {id: a, task: t}\n  - {id: b, after: [a], task: t}\n  - {id: c, after: [a], task: t}\n  - {id: d, task: t}",
    );
    assert_eq!(warned(&open), warning(FaultCode::PartialJoin, 6, "/steps/3"));
    let joined = of_steps(
        "  - {id: a, task: t}\n  - {id: b, after: [a], task: t}\n  - {id: c, after: [a], task: t}\n  - {id: d, after: [b, c], task: t}",
    );
    assert_eq!(warned(&joined), []);
    let later = of_steps(
        "  - {id: a, task: t}\n  - {id: b, task: t}\n  - {id: c, after: [a], task: t}\n  - {id: d, task: t}\n  - {id: e, after: [b, d], task: t}",
    );
    assert_eq!(warned(&later), [], "b is waited for by e");
}

#[test]
fn an_id_that_expressions_read_in_brackets() {
    let text = of_steps("  - {id: cool-off, task: t}\n  - {id: b, task: t, when: \"steps['cool-off'].output.ok\"}");
    assert_eq!(warned(&text), warning(FaultCode::IdNeedsBrackets, 3, "/steps/0/id"));
}

#[test]
fn marks_of_other_template_languages() {
    let text =
        of_steps("  - id: a\n    task: t\n    with: { to: \"{{ input.name }}\", body: \"Dear ${ input.name }\" }");
    let expected = [("/steps/0/with/to", 5), ("/steps/0/with/body", 5)];
    let expected = expected.map(|(path, line)| (FaultCode::MistakenMarks, Some(line), path.to_owned()));
    assert_eq!(warned(&text), expected);
}
