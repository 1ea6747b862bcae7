//! Reads one step: everything but what it does, which `action` reads.

use std::ops::Bound;

use crate::ids::{Handler, Queue};
use crate::time::Span;

use super::action::{Kind, read_action};
use super::fault::FaultCode;
use super::model::{Action, EffectKind, ForEach, HttpAnswer, Join, OnFailure, Repeat, SleepFor, StepDef, SubTask};
use super::outcome::{read_cases, read_deadline, read_failure, read_retry};
use super::parse::{LONGEST_TITLE, Outline, step_named};
use super::reader::{Fields, Reader, Spot, Where};
use super::scope::{NAMES, Place};
use super::yaml::clip;

const EFFECTS: &[(&str, EffectKind)] =
    &[("none", EffectKind::None), ("idempotent", EffectKind::Idempotent), ("external", EffectKind::External)];

/// Reads a step. What is faulty is left at its default: the faults keep the definition from being used.
pub(super) fn read_step(reader: &mut Reader, spot: &Spot<'_>, index: usize, outline: &Outline) -> StepDef {
    let mut step = blank(index, outline);
    if !spot.is_map() {
        return step;
    }
    let Some(mut fields) = reader.map(spot) else { return step };
    step.id = fields.take("id").and_then(|spot| spot.as_text()).unwrap_or_default().to_owned();
    step.title = fields.take("title").and_then(|spot| reader.short_text(&spot, LONGEST_TITLE));
    read_after(reader, &mut fields, &mut step, index, outline);
    let kind = read_action(reader, &mut fields, &mut step, index, outline);
    read_conditions(reader, &mut fields, &mut step);
    read_loops(reader, &mut fields, &mut step, kind);
    read_effect(reader, &mut fields, &mut step, kind, outline);
    read_execution(reader, &mut fields, &mut step, kind);
    read_deadline(reader, &mut fields, &mut step, kind);
    read_failure(reader, &mut fields, &mut step, outline);
    read_cases(reader, &mut fields, &mut step, index, outline);
    warn_of_step(reader, spot, &step, outline);
    fields.finish(reader);
    step
}

fn blank(index: usize, outline: &Outline) -> StepDef {
    StepDef {
        id: String::new(),
        title: None,
        finally: index >= outline.body,
        after: Vec::new(),
        before: Vec::new(),
        action: Action::Sleep(SleepFor::Span(Span::ZERO)),
        when: None,
        requires: None,
        verify: None,
        output_schema: None,
        for_each: None,
        repeat: None,
        effect: EffectKind::None,
        reconcile: None,
        compensate: None,
        connection: None,
        queue: outline.defaults.queue.clone(),
        timeout: outline.defaults.timeout,
        lease: outline.defaults.lease,
        deadline: None,
        at_deadline: None,
        retry: outline.defaults.retry,
        recovery: outline.defaults.recovery.clone(),
        on_failure: OnFailure::Fail,
        on_result: Vec::new(),
    }
}

/// Without `after` a step comes after the one before it; `finally` steps always do.
fn read_after(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, index: usize, outline: &Outline) {
    let first = if step.finally { outline.body } else { 0 };
    let Some(after) = fields.take("after") else {
        step.after = (index > first).then(|| index - 1).into_iter().collect();
        return;
    };
    if step.finally {
        let message = "`finally` steps run one after the other";
        reader.fault_with_hint(FaultCode::DoesNotFit, &after.place(), message, "remove `after`");
        return;
    }
    for item in reader.list(&after) {
        let Some(before) = step_named(reader, &item, outline) else { continue };
        if before >= outline.body {
            let message = format!(
                "`{}` is a `finally` step, which runs when all others have ended",
                clip(item.as_text().unwrap_or_default())
            );
            reader.fault(FaultCode::UnknownStep, &item.place(), message);
        } else if !step.after.contains(&before) {
            step.after.push(before);
        }
    }
}

fn read_conditions(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef) {
    step.when = fields.take("when").and_then(|spot| reader.expression(&spot, Place::When));
    step.requires = fields.take("requires").and_then(|spot| reader.expression(&spot, Place::Requires));
    step.verify = fields.take("verify").and_then(|spot| reader.expression(&spot, Place::Verify));
    step.output_schema = fields.take("output_schema").and_then(|spot| reader.schema(&spot));
}

fn read_loops(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, kind: Option<Kind>) {
    let place = fields.place();
    let each = fields.take("for_each");
    let beside = ["as", "parallel", "join"].map(|name| (name, fields.take(name)));
    let has_each = each.is_some();
    if let Some(list) = each {
        step.for_each = read_for_each(reader, &list, &beside);
    } else {
        for (name, spot) in &beside {
            if let Some(spot) = spot {
                does_not_fit(reader, spot, &format!("`{name}` means nothing without `for_each`"));
            }
        }
    }
    let repeat = fields.take("repeat");
    let has_repeat = repeat.is_some();
    step.repeat = repeat.and_then(|spot| read_repeat(reader, &spot));
    let looped = has_each || has_repeat;
    let unwaited = matches!(step.action, Action::Child { wait: false, .. });
    if has_each && has_repeat {
        let message = "`for_each` and `repeat` do not fit into one step";
        reader.fault_with_hint(FaultCode::DoesNotFit, &place, message, "put the loop into a child workflow");
    }
    if looped && unwaited {
        let message = "a child that is not waited for cannot be started in a loop";
        reader.fault_with_hint(FaultCode::DoesNotFit, &place, message, "remove `wait: false`");
    }
    if looped && kind == Some(Kind::JoinChild) {
        reader.fault(FaultCode::DoesNotFit, &place, "one child is joined once: `join_child` does not loop");
    }
}

fn read_for_each(reader: &mut Reader, list: &Spot<'_>, beside: &[(&str, Option<Spot<'_>>); 3]) -> Option<ForEach> {
    let [(_, name), (_, parallel), (_, join)] = beside;
    let name = name.as_ref().map_or(Some("item".to_owned()), |spot| item_name(reader, spot));
    let parallel = parallel.as_ref().map_or(Some(10), |spot| reader.whole(spot, 1..=1_000));
    let join = join.as_ref().map_or(Some(Join::All), |spot| read_join(reader, spot));
    let list = reader.expression(list, Place::List);
    Some(ForEach { list: list?, name: name.unwrap_or_else(|| "item".into()), parallel: parallel?, join: join? })
}

fn item_name(reader: &mut Reader, spot: &Spot<'_>) -> Option<String> {
    let name = reader.short_text(spot, 50)?;
    let shaped = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let problem = match name.as_str() {
        _ if !shaped => Some(("is not a name for an item", "small letters, digits and _")),
        "item" => None,
        name if NAMES.contains(&name) => {
            Some(("has a meaning of its own in expressions", "choose another name for the item"))
        }
        _ => None,
    };
    if let Some((problem, hint)) = problem {
        reader.fault_with_hint(FaultCode::BadId, &spot.place(), format!("`{name}` {problem}"), hint);
        return None;
    }
    Some(name)
}

fn read_join(reader: &mut Reader, spot: &Spot<'_>) -> Option<Join> {
    if !spot.is_map() {
        return reader.choice(spot, &[("all", Join::All), ("any", Join::Any)]);
    }
    let mut fields = reader.map(spot)?;
    let at_least = fields.take("at_least");
    let min_success = fields.take("min_success");
    fields.finish(reader);
    match (at_least, min_success) {
        (Some(count), None) => reader.whole(&count, 1..=u32::MAX).map(Join::AtLeast),
        (None, Some(share)) => reader.number(&share, Bound::Excluded(0.0), 1.0).map(Join::MinSuccess),
        _ => {
            let hint = "join: all, join: any, join: { at_least: 3 } or join: { min_success: 0.9 }";
            reader.fault_with_hint(
                FaultCode::BadValue,
                &spot.place(),
                "one of at_least and min_success is expected",
                hint,
            );
            None
        }
    }
}

fn read_repeat(reader: &mut Reader, spot: &Spot<'_>) -> Option<Repeat> {
    let mut fields = reader.map(spot)?;
    let until = fields.take("until").and_then(|spot| reader.expression(&spot, Place::Until));
    let every = fields.take("every").map_or(Some(Span::ZERO), |spot| reader.duration_or_zero(&spot));
    let max = fields.take("max").map_or(Some(100), |spot| reader.whole(&spot, 1..=100_000));
    let collect = fields.take("collect").map_or(Some(false), |spot| reader.boolean(&spot));
    fields.finish(reader);
    Some(Repeat { until, every: every?, max: max?, collect: collect? })
}

fn read_effect(
    reader: &mut Reader,
    fields: &mut Fields<'_>,
    step: &mut StepDef,
    kind: Option<Kind>,
    outline: &Outline,
) {
    let acts = kind.is_none_or(Kind::acts);
    if let Some(effect) = fields.take("effect") {
        if acts {
            step.effect = reader.choice(&effect, EFFECTS).unwrap_or_default();
        } else {
            does_not_fit(reader, &effect, "`effect` is declared by steps with `task` or `http`");
        }
    }
    if let Some(probe) = fields.take("reconcile") {
        if !acts {
            does_not_fit(reader, &probe, "`reconcile` probes the effect of `task` or `http`");
        }
        step.reconcile = read_sub_task(reader, &probe, Place::Probe, &step.queue, outline);
    }
    if let Some(undo) = fields.take("compensate") {
        if step.finally {
            does_not_fit(reader, &undo, "`finally` steps are not undone");
        } else if !outline.saga {
            needs_saga(reader, &undo.place());
        }
        step.compensate = read_sub_task(reader, &undo, Place::Undo, &step.queue, outline);
        let asks = step
            .compensate
            .as_ref()
            .is_some_and(|undo| undo.effect == EffectKind::External && undo.reconcile.is_none());
        if asks {
            warn_of_external(reader, &undo.place(), "this undo");
        }
    }
    if let Some(connection) = fields.take("connection") {
        if !acts {
            does_not_fit(reader, &connection, "`connection` belongs to steps with `task` or `http`");
        }
        step.connection = read_connection(reader, &connection);
    }
}

fn read_connection(reader: &mut Reader, spot: &Spot<'_>) -> Option<crate::expression::Template> {
    let template = reader.text_template(spot, 500, Place::Connection)?;
    let text = spot.as_text()?;
    let (tool, account) = text.split_once('/').unwrap_or((text, ""));
    let computed = text.contains("${{");
    if !computed && (tool.is_empty() || account.is_empty() || account.contains('/')) {
        let message = format!("`{}` is not a connection", clip(text));
        reader.fault_with_hint(FaultCode::BadValue, &spot.place(), message, "write it as tool/account");
    }
    Some(template)
}

/// A probe or an undo: the name of its task, or a mapping.
fn read_sub_task(
    reader: &mut Reader,
    spot: &Spot<'_>,
    place: Place,
    queue: &Queue,
    outline: &Outline,
) -> Option<SubTask> {
    let undo = place == Place::Undo;
    let mut sub = SubTask {
        handler: Handler::from(""),
        with: None,
        timeout: outline.defaults.timeout,
        retry: outline.defaults.retry,
        queue: queue.clone(),
        effect: if undo { EffectKind::Idempotent } else { EffectKind::None },
        reconcile: None,
    };
    if !spot.is_map() {
        sub.handler = Handler::new(reader.name(spot)?);
        return Some(sub);
    }
    let mut fields = reader.map(spot)?;
    let handler = fields.require(reader, "task").and_then(|spot| reader.name(&spot));
    sub.with = fields.take("with").and_then(|spot| reader.template(&spot, place));
    if let Some(timeout) = fields.take("timeout").and_then(|spot| reader.duration(&spot)) {
        sub.timeout = Some(timeout);
    }
    if let Some(retry) = fields.take("retry") {
        sub.retry = read_retry(reader, &retry, sub.retry);
    }
    if let Some(queue) = fields.take("queue").and_then(|spot| reader.name(&spot)) {
        sub.queue = Queue::new(queue);
    }
    if undo {
        if let Some(effect) = fields.take("effect").and_then(|spot| reader.choice(&spot, EFFECTS)) {
            sub.effect = effect;
        }
        let probe = fields.take("reconcile");
        sub.reconcile = probe.and_then(|spot| read_sub_task(reader, &spot, Place::Probe, queue, outline)).map(Box::new);
    }
    fields.finish(reader);
    sub.handler = Handler::new(handler?);
    Some(sub)
}

/// Who executes the step, and how long one attempt may take.
fn read_execution(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, kind: Option<Kind>) {
    let task = kind.is_none_or(|kind| kind == Kind::Task);
    let acts = kind.is_none_or(Kind::acts);
    if let Some(queue) = fields.take("queue") {
        fits(reader, &queue, task, "`queue` is where a `task` waits for a worker");
        step.queue = reader.name(&queue).map_or_else(|| step.queue.clone(), Queue::new);
    }
    if let Some(lease) = fields.take("lease") {
        fits(reader, &lease, task, "`lease` is what a worker holds of a `task`");
        step.lease = reader.duration(&lease);
    }
    if let Some(timeout) = fields.take("timeout") {
        fits(reader, &timeout, acts, "`timeout` is of one attempt of `task` or `http`; a wait has a `deadline`");
        step.timeout = reader.duration(&timeout);
    }
    if let Some(retry) = fields.take("retry") {
        let retries = acts || kind == Some(Kind::Child);
        fits(reader, &retry, retries, "a wait is not tried again");
        step.retry = read_retry(reader, &retry, step.retry);
    }
}

fn warn_of_step(reader: &mut Reader, spot: &Spot<'_>, step: &StepDef, outline: &Outline) {
    if step.effect == EffectKind::External && step.reconcile.is_none() {
        warn_of_external(reader, &spot.place(), &format!("`{}`", step.id));
    }
    let waits = match &step.action {
        Action::Approval(_) | Action::Signal(_) | Action::JoinChild { .. } | Action::Child { wait: true, .. } => true,
        Action::Http(http) => http.answer == HttpAnswer::Callback,
        Action::Task { .. } | Action::Child { .. } | Action::Sleep(_) => false,
    };
    if waits && step.deadline.is_none() && !outline.ends {
        let message = format!("`{}` may wait for ever", step.id);
        reader.warn(FaultCode::WaitWithoutDeadline, &spot.place(), message, "give it, or the workflow, a `deadline`");
    }
}

fn warn_of_external(reader: &mut Reader, place: &Where, what: &str) {
    let message = format!("{what} is external and has no probe: when its outcome is unknown, a person is asked");
    reader.warn(FaultCode::ExternalWithoutReconcile, place, message, "add `reconcile`");
}

fn fits(reader: &mut Reader, spot: &Spot<'_>, fits: bool, message: &str) {
    if !fits {
        does_not_fit(reader, spot, message);
    }
}

pub(super) fn does_not_fit(reader: &mut Reader, spot: &Spot<'_>, message: &str) {
    reader.fault(FaultCode::DoesNotFit, &spot.place(), message);
}

pub(super) fn needs_saga(reader: &mut Reader, place: &Where) {
    reader.fault_with_hint(
        FaultCode::NeedsSaga,
        place,
        "`compensate` needs a saga",
        "write `saga: true` in the workflow",
    );
}
