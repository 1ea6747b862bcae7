//! Reads what a step does: exactly one of task, http, approval, child, join_child, sleep and signal.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::expression::Template;
use crate::ids::Handler;

use super::fault::FaultCode;
use super::graph::JoinUse;
use super::model::{
    Action, Approval, EffectKind, Http, HttpAnswer, OnCancel, OnReject, SignalWait, SleepFor, StepDef, WaitMode,
};
use super::outcome::{read_at_deadline, read_jump};
use super::parse::{Outline, step_named, workflow_id};
use super::reader::{Fields, Reader, Spot, Where};
use super::schema::Schema;
use super::scope::Place;
use super::step::does_not_fit;
use super::yaml::{Content, clip};

/// Which of the actions a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Task,
    Http,
    Approval,
    Child,
    JoinChild,
    Sleep,
    Signal,
}

impl Kind {
    /// Whether it does something to the world by itself.
    pub(super) fn acts(self) -> bool {
        match self {
            Kind::Task | Kind::Http => true,
            Kind::Approval | Kind::Child | Kind::JoinChild | Kind::Sleep | Kind::Signal => false,
        }
    }
}

/// The fields that make an action. A sleep may be written as `until`, a signal as `any` or `all`.
const ACTIONS: [(&str, Kind); 10] = [
    ("task", Kind::Task),
    ("http", Kind::Http),
    ("approval", Kind::Approval),
    ("child", Kind::Child),
    ("join_child", Kind::JoinChild),
    ("sleep", Kind::Sleep),
    ("until", Kind::Sleep),
    ("signal", Kind::Signal),
    ("any", Kind::Signal),
    ("all", Kind::Signal),
];

/// Fields that belong to one action but stand beside it.
struct Beside<'n> {
    with: Option<Spot<'n>>,
    version: Option<Spot<'n>>,
    wait: Option<Spot<'n>>,
    on_cancel: Option<Spot<'n>>,
    schema: Option<Spot<'n>>,
}

/// Reads the action into the step; none when there is not exactly one.
pub(super) fn read_action(
    reader: &mut Reader,
    fields: &mut Fields<'_>,
    step: &mut StepDef,
    index: usize,
    outline: &Outline,
) -> Option<Kind> {
    let place = fields.place();
    let mut found: Vec<_> =
        ACTIONS.iter().filter_map(|(name, kind)| Some((*name, *kind, fields.take(name)?))).collect();
    let mut beside = Beside {
        with: fields.take("with"),
        version: fields.take("version"),
        wait: fields.take("wait"),
        on_cancel: fields.take("on_cancel"),
        schema: fields.take("schema"),
    };
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(|(name, ..)| format!("`{name}`")).collect();
        let message = format!("a step does one thing; this one has {}", names.join(" and "));
        reader.fault_with_hint(FaultCode::TwoActions, &place, message, "make a step of each");
        return None;
    }
    let Some((name, kind, spot)) = found.pop() else {
        let hint = "add one of task, http, approval, child, join_child, sleep, signal";
        reader.fault_with_hint(FaultCode::NoAction, &place, "this step does nothing", hint);
        return None;
    };
    let action = match kind {
        Kind::Task => {
            let with = beside.with.take().and_then(|spot| reader.template(&spot, Place::With));
            reader.name(&spot).map(|handler| Action::Task { handler: Handler::new(handler), with })
        }
        Kind::Http => read_http(reader, &spot, step).map(|http| Action::Http(Box::new(http))),
        Kind::Approval => {
            read_approval(reader, &spot, step, index, outline).map(|approval| Action::Approval(Box::new(approval)))
        }
        Kind::Child => read_child(reader, &spot, &mut beside),
        Kind::JoinChild => step_named(reader, &spot, outline).map(|child| {
            reader.joins.push(JoinUse { from: index, child, stands: spot.place() });
            Action::JoinChild { step: child }
        }),
        Kind::Sleep => read_sleep(reader, &spot, name).map(Action::Sleep),
        Kind::Signal => read_signal(reader, &spot, name, beside.schema.take(), step).map(Action::Signal),
    };
    refuse_left(reader, beside);
    step.action = action.unwrap_or_else(|| step.action.clone());
    Some(kind)
}

/// Whatever the action has not taken does not belong to it.
fn refuse_left(reader: &mut Reader, beside: Beside<'_>) {
    let left = [
        (beside.with, "`with` is the input of `task` and `child`; `http` has a `body`, an approval a `subject`"),
        (beside.version, "`version` belongs to `child`"),
        (beside.wait, "`wait` belongs to `child`"),
        (beside.on_cancel, "`on_cancel` belongs to `child`"),
        (beside.schema, "`schema` belongs to `signal`; the output of other steps has `output_schema`"),
    ];
    for (spot, message) in left {
        if let Some(spot) = spot {
            does_not_fit(reader, &spot, message);
        }
    }
}

fn read_child(reader: &mut Reader, spot: &Spot<'_>, beside: &mut Beside<'_>) -> Option<Action> {
    let workflow = workflow_id(reader, spot);
    let version = beside.version.take().map(|spot| reader.whole(&spot, 1..=u32::MAX));
    let wait = beside.wait.take().map_or(Some(true), |spot| reader.boolean(&spot));
    let words = [("cancel", OnCancel::Cancel), ("leave", OnCancel::Leave)];
    let on_cancel = beside.on_cancel.take().map_or(Some(OnCancel::Cancel), |spot| reader.choice(&spot, &words));
    let with = beside.with.take().and_then(|spot| reader.template(&spot, Place::With));
    Some(Action::Child { workflow: workflow?, version: version.flatten(), with, wait: wait?, on_cancel: on_cancel? })
}

/// `sleep: 10m`, `sleep: { until: EXPR }` or `until: EXPR`.
fn read_sleep(reader: &mut Reader, spot: &Spot<'_>, name: &str) -> Option<SleepFor> {
    if name == "until" {
        return reader.expression(spot, Place::Wake).map(SleepFor::Until);
    }
    if !spot.is_map() {
        return reader.duration(spot).map(SleepFor::Span);
    }
    let mut fields = reader.map(spot)?;
    let until = fields.require(reader, "until").and_then(|spot| reader.expression(&spot, Place::Wake));
    fields.finish(reader);
    until.map(SleepFor::Until)
}

/// `signal: NAME`, `any: [..]`, `all: [..]`, or a mapping with one of them and what else belongs to the wait.
fn read_signal(
    reader: &mut Reader,
    spot: &Spot<'_>,
    name: &str,
    schema: Option<Spot<'_>>,
    step: &mut StepDef,
) -> Option<SignalWait> {
    let schema = schema.and_then(|spot| reader.schema(&spot));
    if name != "signal" || !spot.is_map() {
        return signal_names(reader, spot, name, schema);
    }
    let mut fields = reader.map(spot)?;
    let named = ["name", "any", "all"].map(|name| (name, fields.take(name)));
    let inner = fields.take("schema").and_then(|spot| reader.schema(&spot));
    read_inner_deadline(reader, &mut fields, step, false);
    fields.finish(reader);
    let mut named = named.into_iter().filter_map(|(name, spot)| Some((name, spot?)));
    match (named.next(), named.next()) {
        (Some((name, spot)), None) => signal_names(reader, &spot, name, inner.or(schema)),
        _ => {
            let hint = "signal: NAME, any: [A, B] or all: [A, B]";
            reader.fault_with_hint(FaultCode::BadValue, &spot.place(), "one of name, any and all is expected", hint);
            None
        }
    }
}

fn signal_names(reader: &mut Reader, spot: &Spot<'_>, name: &str, schema: Option<Schema>) -> Option<SignalWait> {
    let mode = match name {
        "any" => WaitMode::Any,
        "all" => WaitMode::All,
        _ => return Some(SignalWait { names: vec![reader.name(spot)?], mode: WaitMode::One, schema }),
    };
    let mut names: Vec<String> = Vec::new();
    for item in reader.list(spot) {
        match reader.name(&item) {
            Some(name) if names.contains(&name) => {
                reader.fault(FaultCode::BadValue, &item.place(), format!("`{}` is listed twice", clip(&name)));
            }
            Some(name) => names.push(name),
            None => {}
        }
    }
    if matches!(&spot.node.content, Content::List(items) if items.is_empty()) {
        reader.fault(FaultCode::BadValue, &spot.place(), "no signal is named");
    }
    Some(SignalWait { names, mode, schema })
}

/// `deadline` and `at_deadline` inside the wait they belong to.
fn read_inner_deadline(reader: &mut Reader, fields: &mut Fields<'_>, step: &mut StepDef, approval: bool) {
    let deadline = fields.take("deadline");
    let bounded = deadline.is_some();
    step.deadline = deadline.and_then(|spot| reader.duration(&spot));
    step.at_deadline = fields.take("at_deadline").and_then(|spot| read_at_deadline(reader, &spot, bounded, approval));
}

fn read_approval(
    reader: &mut Reader,
    spot: &Spot<'_>,
    step: &mut StepDef,
    index: usize,
    outline: &Outline,
) -> Option<Approval> {
    let mut fields = reader.map(spot)?;
    let title = fields.take("title").and_then(|spot| reader.text_template(&spot, 500, Place::Approval));
    let subject = fields.take("subject").and_then(|spot| reader.template(&spot, Place::Approval));
    let approvers = fields.take("approvers").map(|spot| read_approvers(reader, &spot)).unwrap_or_default();
    let quorum = fields.take("quorum").and_then(|spot| read_quorum(reader, &spot, &approvers)).unwrap_or(1);
    let not_requester = fields.take("not_requester").and_then(|spot| reader.boolean(&spot)).unwrap_or(false);
    let on_reject = fields.take("on_reject").and_then(|spot| read_on_reject(reader, &spot, index, outline));
    let form = fields.take("form").and_then(|spot| reader.schema(&spot));
    read_inner_deadline(reader, &mut fields, step, true);
    fields.finish(reader);
    let on_reject = on_reject.unwrap_or(OnReject::Fail);
    Some(Approval { title, subject, approvers, quorum, not_requester, on_reject, form })
}

/// People by id and groups as `role:NAME`.
pub(super) fn read_approvers(reader: &mut Reader, spot: &Spot<'_>) -> Vec<String> {
    let mut approvers = Vec::new();
    for item in reader.list(spot) {
        let Some(name) = reader.short_text(&item, 200) else { continue };
        if name == "role:" || name.chars().any(|c| c.is_whitespace() || c.is_control()) || name.contains("${{") {
            let message = format!("`{}` is neither a person nor a role", clip(&name));
            reader.fault_with_hint(
                FaultCode::BadValue,
                &item.place(),
                message,
                "write ana@example.com or role:manager",
            );
        } else if !approvers.contains(&name) {
            approvers.push(name);
        }
    }
    approvers
}

fn read_quorum(reader: &mut Reader, spot: &Spot<'_>, approvers: &[String]) -> Option<u32> {
    let quorum = reader.whole(spot, 1..=1_000)?;
    let only_people = !approvers.is_empty() && approvers.iter().all(|approver| !approver.starts_with("role:"));
    if only_people && quorum as usize > approvers.len() {
        let message = format!("{quorum} people must agree, but only {} may", approvers.len());
        reader.fault_with_hint(FaultCode::OutOfRange, &spot.place(), message, "name more people or a role");
    }
    Some(quorum)
}

fn read_on_reject(reader: &mut Reader, spot: &Spot<'_>, index: usize, outline: &Outline) -> Option<OnReject> {
    if !spot.is_map() {
        let words = [("fail", OnReject::Fail), ("warn", OnReject::Warn), ("continue", OnReject::Continue)];
        return reader.choice(spot, &words);
    }
    let mut fields = reader.map(spot)?;
    let jump = read_jump(reader, &mut fields, index, outline);
    if jump.is_none() {
        fields.require(reader, "go_to");
    }
    fields.finish(reader);
    jump.flatten().map(OnReject::GoTo)
}

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

fn read_http(reader: &mut Reader, spot: &Spot<'_>, step: &mut StepDef) -> Option<Http> {
    let mut fields = reader.map(spot)?;
    let words = METHODS.map(|method| (method, method));
    let method = fields.take("method").map_or(Some("GET"), |spot| reader.choice(&spot, &words));
    let url = fields.require(reader, "url").and_then(|spot| read_url(reader, &spot));
    let headers = fields.take("headers").map(|spot| read_headers(reader, &spot)).unwrap_or_default();
    let body = fields.take("body");
    let answers = [("response", HttpAnswer::Response), ("callback", HttpAnswer::Callback)];
    let answer = fields.take("answer").map_or(Some(HttpAnswer::Response), |spot| reader.choice(&spot, &answers));
    fields.finish(reader);
    step.effect = match method {
        Some("POST" | "PATCH") => EffectKind::External,
        Some("PUT" | "DELETE") => EffectKind::Idempotent,
        _ => EffectKind::None,
    };
    if let (Some(body), Some(method @ ("GET" | "HEAD"))) = (&body, method) {
        does_not_fit(reader, body, &format!("a {method} request has no body"));
    }
    let body = body.and_then(|spot| reader.template(&spot, Place::Http));
    Some(Http { method: method?.to_owned(), url: url?, headers, body, answer: answer? })
}

fn read_url(reader: &mut Reader, spot: &Spot<'_>) -> Option<Template> {
    let template = reader.text_template(spot, 4_000, Place::Http)?;
    let text = spot.as_text()?;
    let fixed = text.split("${{").next().unwrap_or(text);
    let lower = fixed.to_ascii_lowercase();
    let computed = fixed.len() < text.len();
    let scheme = ["http://", "https://"]
        .iter()
        .any(|scheme| lower.starts_with(scheme) && (computed || lower.len() > scheme.len()));
    let all_computed = computed && fixed.is_empty();
    if !scheme && !all_computed {
        let message = format!("`{}` is not an address", clip(text));
        reader.fault_with_hint(FaultCode::BadValue, &spot.place(), message, "it starts with https:// or http://");
    } else if fixed.chars().any(|c| c.is_whitespace() || c.is_control()) {
        reader.fault(FaultCode::BadValue, &spot.place(), "an address has no spaces or line breaks");
    }
    Some(template)
}

/// Headers that the engine or the connection sets; another value would break the request or its promises.
const OWN_HEADERS: [&str; 7] =
    ["host", "content-length", "transfer-encoding", "connection", "upgrade", "idempotency-key", "trailer"];

fn read_headers(reader: &mut Reader, spot: &Spot<'_>) -> Vec<(String, Template)> {
    let mut headers = Vec::new();
    let mut names = BTreeSet::new();
    for (key, value) in reader.entries(spot) {
        let name = key.text.to_ascii_lowercase();
        let place = Where { at: key.at, path: value.path.clone() };
        if let Some(problem) = header_problem(&name) {
            reader.fault(FaultCode::BadHeader, &place, format!("`{}` {problem}", clip(&key.text)));
        } else if !names.insert(name.clone()) {
            reader.fault(FaultCode::BadHeader, &place, format!("`{}` is written twice", clip(&key.text)));
        }
        if let Some(template) = header_value(reader, &value) {
            headers.push((name, template));
        }
    }
    headers
}

fn header_problem(name: &str) -> Option<&'static str> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || name.len() > 100 || !name.chars().all(token) {
        return Some("is not the name of a header");
    }
    let own = OWN_HEADERS.contains(&name) || name.starts_with("abide-");
    own.then_some("is set for you and cannot be replaced")
}

fn header_value(reader: &mut Reader, spot: &Spot<'_>) -> Option<Template> {
    let text = match &spot.node.content {
        Content::Text(text) => text.clone(),
        Content::Number(number) => number.to_string(),
        Content::Bool(value) => value.to_string(),
        Content::Null | Content::List(_) | Content::Map(_) => {
            reader.text(spot);
            return None;
        }
    };
    if text.chars().any(|c| c.is_control() && c != '\t') {
        reader.fault(FaultCode::BadHeader, &spot.place(), "the value of a header has no line breaks");
        return None;
    }
    reader.template_of(&Value::String(text), spot, Place::Http)
}
