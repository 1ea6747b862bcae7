//! Reads what happens around an attempt: deadlines, retries, recovery, and where a result leads.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::contract::{FailureClass, Policy};

use super::action::{Kind, read_approvers};
use super::fault::FaultCode;
use super::graph::JumpUse;
use super::model::{AtDeadline, Case, Jump, OnFailure, RetryPolicy, StepDef, Then};
use super::parse::{Outline, step_named};
use super::reader::{Fields, Reader, Spot, Where, did_you_mean};
use super::scope::Place;
use super::step::{does_not_fit, needs_saga};
use super::yaml::clip;

/// A deadline may also stand inside `approval` or `signal`; then it has been read already.
pub(super) fn read_deadline(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, kind: Option<Kind>) {
    let deadline = fields.take("deadline");
    let outcome = fields.take("at_deadline");
    for spot in [&deadline, &outcome].into_iter().flatten() {
        if step.deadline.is_some() || step.at_deadline.is_some() {
            does_not_fit(reader, spot, "the deadline is written twice: here and inside the wait");
            return;
        }
    }
    let bounded = deadline.is_some() || step.deadline.is_some();
    step.deadline = deadline.and_then(|spot| reader.duration(&spot)).or(step.deadline);
    if let Some(outcome) = outcome {
        step.at_deadline = read_at_deadline(reader, &outcome, bounded, kind == Some(Kind::Approval));
    }
}

pub(super) fn read_at_deadline(
    reader: &mut Reader,
    spot: &Spot<'_>,
    bounded: bool,
    approval: bool,
) -> Option<AtDeadline> {
    if !bounded {
        let message = "`at_deadline` means nothing without `deadline`";
        reader.fault_with_hint(FaultCode::DoesNotFit, &spot.place(), message, "add `deadline`");
    }
    if spot.is_map() {
        let mut fields = reader.map(spot)?;
        let people = fields.require(reader, "escalate").map(|list| read_approvers(reader, &list));
        fields.finish(reader);
        only_approvals(reader, spot, approval, "escalate");
        let people = people?;
        if people.is_empty() {
            reader.fault(FaultCode::BadValue, &spot.place(), "`escalate` names nobody");
        }
        return Some(AtDeadline::Escalate(people));
    }
    let words = [
        ("fail", Some(AtDeadline::Fail)),
        ("warn", Some(AtDeadline::Warn)),
        ("approve", Some(AtDeadline::Approve)),
        ("escalate", None),
    ];
    let outcome = reader.choice(spot, &words)?;
    if outcome.is_none() {
        let hint = "at_deadline: { escalate: [role:director] }";
        reader.fault_with_hint(FaultCode::BadValue, &spot.place(), "`escalate` needs people", hint);
    }
    if outcome == Some(AtDeadline::Approve) {
        only_approvals(reader, spot, approval, "approve");
    }
    outcome
}

fn only_approvals(reader: &mut Reader, spot: &Spot<'_>, approval: bool, what: &str) {
    if !approval {
        let message = format!("`{what}` is an outcome of approvals alone");
        reader.fault_with_hint(FaultCode::DoesNotFit, &spot.place(), message, "fail or warn");
    }
}

pub(super) fn read_failure(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, outline: &Outline) {
    if let Some(recovery) = fields.take("recovery") {
        let own = read_recovery(reader, &recovery);
        for (class, policy) in own {
            let place = || Where {
                path: format!("{}/{class}", recovery.path),
                at: recovery.node.nearest(&format!("/{class}")).at,
            };
            if policy == Policy::Compensate && !outline.saga {
                needs_saga(reader, &place());
            }
            if policy == Policy::Reconcile && step.reconcile.is_none() && class != FailureClass::OutcomeUnknown {
                let message = "this step has no probe to reconcile with";
                reader.fault_with_hint(FaultCode::DoesNotFit, &place(), message, "add `reconcile`");
            }
            step.recovery.insert(class, policy);
        }
    }
    let Some(on_failure) = fields.take("on_failure") else { return };
    let words = [("fail", OnFailure::Fail), ("warn", OnFailure::Warn), ("compensate", OnFailure::Compensate)];
    step.on_failure = reader.choice(&on_failure, &words).unwrap_or_default();
    if step.finally && step.on_failure != OnFailure::Warn {
        does_not_fit(reader, &on_failure, "the failure of a `finally` step is always a warning");
    } else if step.on_failure == OnFailure::Compensate && !outline.saga {
        needs_saga(reader, &on_failure.place());
    }
}

/// Policies per failure class, with `wait_on_auth` and `re_evaluate` left to the classes that have them by default.
pub(super) fn read_recovery(reader: &mut Reader, spot: &Spot<'_>) -> BTreeMap<FailureClass, Policy> {
    let policies: Vec<(&str, Policy)> = Policy::ALL
        .iter()
        .filter(|policy| !matches!(policy, Policy::WaitOnAuth | Policy::ReEvaluate))
        .map(|policy| (policy.as_str(), *policy))
        .collect();
    let mut recovery = BTreeMap::new();
    for (key, value) in reader.entries(spot) {
        let Some(class) = FailureClass::parse(&key.text) else {
            let classes: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
            let near = did_you_mean(&key.text, classes.iter().copied());
            let hint = format!("{near}classes: {}", classes.join(", "));
            let place = Where { at: key.at, path: value.path };
            let message = format!("`{}` is not a failure class", clip(&key.text));
            reader.fault_with_hint(FaultCode::UnknownField, &place, message, hint);
            continue;
        };
        let Some(policy) = reader.choice(&value, &policies) else { continue };
        let settled = matches!(
            class,
            FailureClass::Auth | FailureClass::Permission | FailureClass::Validation | FailureClass::RateLimited
        );
        if policy == Policy::Reconcile && settled {
            let message = format!("`{class}` says that nothing happened, so there is nothing to reconcile");
            reader.fault(FaultCode::DoesNotFit, &value.place(), message);
        }
        recovery.insert(class, policy);
    }
    recovery
}

pub(super) fn read_retry(reader: &mut Reader, spot: &Spot<'_>, inherited: RetryPolicy) -> RetryPolicy {
    let Some(mut fields) = reader.map(spot) else { return inherited };
    let mut retry = inherited;
    if let Some(n) = fields.take("max_attempts").and_then(|spot| reader.whole(&spot, 1..=1_000)) {
        retry.max_attempts = n;
    }
    let first = fields.take("first");
    let max = fields.take("max");
    retry.first = first.as_ref().and_then(|spot| reader.duration_or_zero(spot)).unwrap_or(inherited.first);
    retry.max = max.as_ref().and_then(|spot| reader.duration(spot)).unwrap_or(inherited.max);
    if let Some(factor) = fields.take("factor").and_then(|spot| reader.number(&spot, Bound::Included(1.0), 100.0)) {
        retry.factor = factor;
    }
    if let Some(jitter) = fields.take("jitter").and_then(|spot| reader.number(&spot, Bound::Included(0.0), 1.0)) {
        retry.jitter = jitter;
    }
    if let Some(span) = fields.take("give_up_after").and_then(|spot| reader.duration(&spot)) {
        retry.give_up_after = span;
    }
    if let Some(written) = first.or(max).filter(|_| retry.first > retry.max) {
        let message = format!("the first pause ({}) is longer than the longest ({})", retry.first, retry.max);
        reader.fault_with_hint(FaultCode::OutOfRange, &written.place(), message, "raise `max` or lower `first`");
    }
    fields.finish(reader);
    retry
}

pub(super) fn read_cases(
    reader: &mut Reader,
    fields: &mut Fields<'_>,
    step: &mut StepDef,
    index: usize,
    outline: &Outline,
) {
    let Some(cases) = fields.take("on_result") else { return };
    for spot in reader.list(&cases) {
        if step.on_result.last().is_some_and(|case| case.when.is_none()) {
            does_not_fit(reader, &spot, "this case is never reached: the one before it has no `when`");
            return;
        }
        let Some(mut case) = reader.map(&spot) else { continue };
        let when = case.take("when");
        let conditional = when.is_some();
        let when = when.and_then(|spot| reader.expression(&spot, Place::Case));
        let then = read_then(reader, &mut case, index, outline);
        case.finish(reader);
        if let Some(then) = then.filter(|_| when.is_some() || !conditional) {
            step.on_result.push(Case { when, then });
        }
    }
}

/// `then: WORD`, `then: {go_to, max_visits}`, or `go_to` and `max_visits` in the case itself.
fn read_then(reader: &mut Reader, case: &mut Fields<'_>, index: usize, outline: &Outline) -> Option<Then> {
    let then = case.take("then");
    let jump = read_jump(reader, case, index, outline);
    match then {
        Some(then) if jump.is_some() => {
            does_not_fit(reader, &then, "`then` and `go_to` do not fit into one case");
            None
        }
        Some(then) if then.is_map() => {
            let mut fields = reader.map(&then)?;
            let jump = read_jump(reader, &mut fields, index, outline);
            if jump.is_none() {
                fields.require(reader, "go_to");
            }
            fields.finish(reader);
            Some(Then::GoTo(jump??))
        }
        Some(then) => {
            let words =
                [("complete", Then::Complete), ("fail", Then::Fail), ("retry", Then::Retry), ("skip", Then::Skip)];
            if then.as_text() == Some("go_to") {
                reader.fault_with_hint(
                    FaultCode::BadValue,
                    &then.place(),
                    "`go_to` needs a step",
                    "then: { go_to: STEP }",
                );
                return None;
            }
            reader.choice(&then, &words)
        }
        None if jump.is_none() => {
            case.require(reader, "then");
            None
        }
        None => Some(Then::GoTo(jump??)),
    }
}

/// `go_to: STEP` and what stands beside it; the outer option says whether it is written at all.
pub(super) fn read_jump(
    reader: &mut Reader,
    fields: &mut Fields<'_>,
    index: usize,
    outline: &Outline,
) -> Option<Option<Jump>> {
    let target = fields.take("go_to");
    let visits = fields.take("max_visits");
    let Some(target) = target else {
        if let Some(visits) = visits {
            does_not_fit(reader, &visits, "`max_visits` means nothing without `go_to`");
        }
        return None;
    };
    let max_visits = match visits {
        Some(spot) => match reader.whole(&spot, 1..=1_000) {
            Some(n) => Some(n),
            None => return Some(None),
        },
        None => None,
    };
    let Some(step) = step_named(reader, &target, outline) else { return Some(None) };
    reader.jumps.push(JumpUse { from: index, to: step, max_visits, stands: target.place() });
    Some(Some(Jump { step, max_visits }))
}
