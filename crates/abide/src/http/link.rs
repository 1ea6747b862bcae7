//! One-time links: a page that shows what is to be decided, without a script. Looking changes nothing; only its button
//! decides, once. Who comes late sees what was decided.

use abide_api::engine::{duration, identifier};
use abide_api::runs::{Link as LinkView, MakeLink};
use abide_api::{Code, Problem};
use abide_core::expression::{readable_text, split_list, split_object};
use abide_core::ids::{Digest, Path};
use abide_core::run::command::{Actor, Ask, Command};
use abide_core::time::{Span, Timestamp};
use abide_engine::reads::{ApprovalView, DecisionView};
use abide_engine::request::{Access, Link, Request, ToRun, What};
use maud::{DOCTYPE, Markup, html};

use super::access::token;
use super::call::{Answered, Call, Reply};
use super::form::{self, Fault, Typed};
use super::page::guarded;
use super::serve::wants_page;

const USUAL_LIFE: Span = Span::from_secs(7 * 86_400);
/// Longest comment that the page takes.
const COMMENT: u32 = 1_000;

/// `POST /v1/runs/{id}/approvals/{step}/links`
pub async fn make(call: Call, asked: MakeLink) -> Answered {
    if call.said_before().await?.is_some() {
        let detail = "This request made a link before. Its address was in that answer alone; it still works, once.";
        return Err(Problem::new(Code::ShownOnce, detail));
    }
    let whom = identifier("/for", &asked.whom)?.to_owned();
    let life = asked.expires_in.as_deref().map(|text| duration("/expires_in", text)).transpose()?.unwrap_or(USUAL_LIFE);
    let (run_id, path) = (call.run_id(), Path::from(call.param("step_id")));
    let Some(approval) = call.engine.approval(&run_id, &path).await? else {
        let record = call.engine.run(&run_id).await?;
        let problem = Problem::new(Code::NotWaiting, format!("{path} does not wait for a decision."));
        return Err(problem.with("current_state", record.state.as_str()).with("allowed", Vec::<String>::new()));
    };
    let expires_at = call.engine.clock().now() + life;
    let groups = groups_of(&call, &approval, &whom)?;
    let made = Ask::MakeLink { step_id: path.clone(), whom: whom.clone(), groups: groups.clone(), expires_at };
    // The event comes first: a link that no event speaks of must not exist.
    call.command_unkeyed(made).await?;
    let token = token(43);
    let link = Link {
        token_hash: Digest::of(token.as_bytes()),
        namespace: call.who.namespace.clone(),
        run_id,
        path,
        whom,
        groups,
        expires_at,
        used_at: None,
    };
    call.ask(What::Access(Box::new(Access::AddLink(link)))).await?;
    let url = format!("{}/links/{token}", call.api.settings.public_url);
    Ok(Reply::json(201, &LinkView { url, expires_at }))
}

/// The groups of the person a link is for. To make one is to act for another, which takes the right to.
fn groups_of(call: &Call, approval: &ApprovalView, whom: &str) -> Result<Vec<String>, Problem> {
    let Some(key) = &call.who.key else {
        // Where there are no keys everybody is in every group.
        return Ok(approval.approvers.iter().filter_map(|name| name.strip_prefix("role:")).map(Into::into).collect());
    };
    if !key.acts_for_others {
        let detail = "To make a link for somebody is to act for them: it takes a key that may act for others.";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let named = approval.approvers.iter().any(|approver| approver == whom);
    match call.api.keys.groups_of(&call.who.namespace, whom, call.engine.clock().now()) {
        Some(groups) => Ok(groups),
        None if named => Ok(Vec::new()),
        None => {
            let detail =
                format!("{whom} is no approver by name, and holds no key that would say which groups they are in.");
            Err(Problem::new(Code::NotAnApprover, detail))
        }
    }
}

/// The link of this page.
async fn find(call: &Call) -> Result<Link, Problem> {
    let hash = Digest::of(call.param("token").as_bytes());
    let link = call.api.engine.link(hash).await?;
    link.ok_or_else(|| {
        Problem::new(Code::NotFound, "There is no such link. It may have been cut off when it was copied.")
    })
}

/// Why a link decides nothing any more.
fn spent(link: &Link, now: Timestamp) -> Option<Problem> {
    match link.used_at {
        Some(at) => Some(Problem::new(Code::TokenUsed, format!("This link was used at {}.", instant(at)))),
        None if link.expires_at <= now => {
            Some(Problem::new(Code::TokenExpired, format!("This link expired at {}.", instant(link.expires_at))))
        }
        None => None,
    }
}

/// `GET /links/{token}`
pub async fn show(call: Call) -> Answered {
    let link = match find(&call).await {
        Ok(link) => link,
        Err(problem) => return Ok(refusal(&problem)),
    };
    let engine = call.api.engine.in_namespace(link.namespace.clone());
    if let Some(problem) = spent(&link, call.engine.clock().now()) {
        return outcome(&call, &link, problem.status, &problem.title, &problem.detail).await;
    }
    match engine.approval(&link.run_id, &link.path).await? {
        Some(approval) => Ok(ask(&call, 200, &approval, &link, &Answer::default())),
        None => outcome(&call, &link, 200, "This was decided already", "").await,
    }
}

/// What was typed and what is wrong with it.
#[derive(Default)]
struct Answer {
    typed: Option<Typed>,
    comment: String,
    faults: Vec<Fault>,
    refused: Option<String>,
}

/// `POST /links/{token}`: a browser gets pages, a program problems.
pub async fn decide(call: Call) -> Answered {
    let is_browser = wants_page(&call.headers);
    let link = match find(&call).await {
        Ok(link) => link,
        Err(problem) if is_browser => return Ok(refusal(&problem)),
        Err(problem) => return Err(problem),
    };
    let pairs: Vec<(String, String)> =
        form_urlencoded::parse(&call.body).map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    match carry(&call, &link, &pairs).await {
        Ok(said) => outcome(&call, &link, 200, said, "").await,
        Err(problem) if is_browser => again(&call, &link, &pairs, problem).await,
        Err(problem) => Err(problem),
    }
}

/// Decides, and says what was decided.
async fn carry(call: &Call, link: &Link, pairs: &[(String, String)]) -> Result<&'static str, Problem> {
    if let Some(problem) = spent(link, call.engine.clock().now()) {
        return Err(problem);
    }
    let approve = match given(pairs, "decision") {
        Some("approve") => true,
        Some("reject") => false,
        _ => return Err(Problem::invalid("decision", "It is approve or reject.")),
    };
    let ask = Ask::Decide {
        step_id: Some(link.path.clone()),
        by: link.whom.clone(),
        approve,
        comment: given(pairs, "comment").filter(|comment| !comment.is_empty()).map(Into::into),
        form: filled(call, link, pairs, approve).await?,
        subject_digest: given(pairs, "subject_digest").and_then(Digest::parse),
        via: Some("link".into()),
    };
    let command = Command::new(Actor::user(link.whom.clone()), ask);
    let to_run =
        ToRun { groups: link.groups.clone(), link: Some(link.token_hash), ..ToRun::new(link.run_id.clone(), command) };
    let what = What::Run(Box::new(to_run));
    call.api.engine.ask(Request { namespace: link.namespace.clone(), idempotency: None, what }).await?;
    Ok(if approve { "Approved" } else { "Rejected" })
}

fn given<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The form as JSON, where there is one. Whoever says no need not fill it in.
async fn filled(
    call: &Call,
    link: &Link,
    pairs: &[(String, String)],
    approve: bool,
) -> Result<Option<abide_core::run::command::Json>, Problem> {
    let engine = call.api.engine.in_namespace(link.namespace.clone());
    let approval = engine.approval(&link.run_id, &link.path).await?;
    let Some(schema) = approval.and_then(|approval| approval.form) else { return Ok(None) };
    let typed = form::typed(pairs);
    if !approve && !form::is_touched(&schema, &typed) {
        return Ok(None);
    }
    match form::read(&schema, &typed) {
        Ok(value) => Ok(Some(value.to_string().into())),
        Err(faults) => {
            let problem = Problem::new(Code::ValidationFailed, "Some fields are not as they must be.");
            Err(faults
                .iter()
                .fold(problem, |problem, fault| problem.field(format!("/form{}", fault.pointer), fault.detail.clone())))
        }
    }
}

/// The page after a refusal: what was typed stays. What was decided elsewhere is shown, and is no error.
async fn again(call: &Call, link: &Link, pairs: &[(String, String)], problem: Problem) -> Answered {
    let engine = call.api.engine.in_namespace(link.namespace.clone());
    let Some(approval) = engine.approval(&link.run_id, &link.path).await? else {
        return outcome(call, link, problem.status, "This was decided already", "").await;
    };
    if problem.is(Code::TokenUsed) || problem.is(Code::TokenExpired) {
        return outcome(call, link, problem.status, &problem.title, &problem.detail).await;
    }
    let fault = |error: &abide_api::FieldError| Fault {
        pointer: error.pointer.strip_prefix("/form").unwrap_or(&error.pointer).to_owned(),
        detail: error.detail.clone(),
    };
    let answer = Answer {
        typed: Some(form::typed(pairs)),
        comment: given(pairs, "comment").unwrap_or_default().to_owned(),
        faults: problem.errors.iter().map(fault).collect(),
        refused: Some(problem.detail.clone()),
    };
    Ok(ask(call, problem.status, &approval, link, &answer))
}

/// What is to be decided, and the buttons that do.
fn ask(call: &Call, status: u16, approval: &ApprovalView, link: &Link, answer: &Answer) -> Reply {
    let now = call.engine.clock().now();
    let body = html! {
        p.eyebrow { "Approval" }
        h1 { (approval.title) }
        @if let Some(why) = &answer.refused { p.refused role="alert" { (why) } }
        (facts(approval, link, now))
        @if let Some(subject) = &approval.subject { section { h2 { "What is decided" } (subject_table(subject)) } }
        form method="post" novalidate {
            input type="hidden" name="subject_digest" value=(approval.subject_digest);
            @if let Some(schema) = &approval.form { (form::render(schema, answer.typed.as_ref(), &answer.faults)) }
            div.field {
                label for="comment" { "Comment" span.faint { " optional" } }
                textarea #comment name="comment" rows="2" maxlength=(COMMENT) { "\n" (answer.comment) }
            }
            div.actions {
                button.primary name="decision" value="approve" { "Approve" }
                button.danger name="decision" value="reject" { "Reject" }
            }
        }
    };
    page_of(status, &approval.title, &body)
}

fn facts(approval: &ApprovalView, link: &Link, now: Timestamp) -> Markup {
    let who = match approval.approvers.as_slice() {
        [] => "anybody who may approve".to_owned(),
        names => names.join(", "),
    };
    html! {
        dl.facts {
            div { dt { "You decide as" } dd { (link.whom) } }
            div { dt { "Deadline" } dd { (deadline(approval, now)) } }
            div { dt { "Who may decide" } dd { (who)
                @if approval.quorum > 1 { br; span.faint { (approval.given) " of " (approval.quorum) " have approved" } } } }
            div { dt { "Step" } dd { (approval.step_id) " of " (approval.workflow_id) } }
            div { dt { "Run" } dd { code { (approval.run_id) } } }
            div { dt { "Digest of the subject" } dd { code.digest title=(approval.subject_digest) { (approval.subject_digest) } } }
        }
        @if !approval.decisions.is_empty() { (decided(&approval.decisions)) }
    }
}

/// Until when, and what happens then.
fn deadline(approval: &ApprovalView, now: Timestamp) -> Markup {
    let Some(at) = approval.deadline else { return html! { "none" } };
    let left = if at > now { format!("in {}", at.since(now)) } else { format!("{} ago", now.since(at)) };
    html! {
        time datetime=(at) { (instant(at)) } " (" (left) ")"
        @if let Some(then) = &approval.at_deadline { br; span.faint { "then " (then) } }
    }
}

fn decided(decisions: &[DecisionView]) -> Markup {
    html! {
        ul.decisions {
            @for one in decisions {
                li {
                    strong { (one.by) } @if one.approve { " approved" } @else { " rejected" }
                    ", " time datetime=(one.at) { (instant(one.at)) }
                    @if let Some(comment) = &one.comment { br; span.soft { "“" (comment) "”" } }
                }
            }
        }
    }
}

/// An object of simple values as a table, anything else as JSON. Numbers and texts are shown as they are stored: a person
/// decides on what they see.
fn subject_table(json: &str) -> Markup {
    let is_simple = |value: &str| !value.starts_with(['{', '[']);
    let fields = split_object(json).filter(|fields| !fields.is_empty() && fields.len() <= 40);
    match fields {
        Some(fields) => html! {
            dl.subject {
                @for (name, value) in fields {
                    div { dt { (text_or_json(name)) } dd {
                        @if is_simple(value) { (text_or_json(value)) } @else { pre tabindex="0" { (pretty(value)) } }
                    } }
                }
            }
        },
        None => html! { pre tabindex="0" { (pretty(json)) } },
    }
}

/// The text of a JSON string, other values as they are written.
fn text_or_json(json: &str) -> std::borrow::Cow<'_, str> {
    readable_text(json).unwrap_or(json.into())
}

/// JSON with a line for each member and item; each value stays as it is written.
fn pretty(json: &str) -> String {
    let mut text = String::new();
    pretty_into(&mut text, json.trim(), 0);
    text
}

fn pretty_into(text: &mut String, json: &str, depth: usize) {
    let (open, members, close) = match json.as_bytes().first() {
        Some(b'{') => ('{', split_object(json).unwrap_or_default(), '}'),
        Some(b'[') => ('[', split_list(json).unwrap_or_default().into_iter().map(|item| ("", item)).collect(), ']'),
        _ => return text.push_str(json),
    };
    text.push(open);
    for (at, (name, value)) in members.iter().enumerate() {
        text.push_str(if at == 0 { "\n" } else { ",\n" });
        text.push_str(&"  ".repeat(depth + 1));
        text.push_str(name);
        text.push_str(if name.is_empty() { "" } else { ": " });
        pretty_into(text, value, depth + 1);
    }
    if !members.is_empty() {
        text.push('\n');
        text.push_str(&"  ".repeat(depth));
    }
    text.push(close);
}

/// What became of it.
async fn outcome(call: &Call, link: &Link, status: u16, title: &str, detail: &str) -> Answered {
    let engine = call.api.engine.in_namespace(link.namespace.clone());
    let record = engine.run(&link.run_id).await?;
    let decisions = engine.decisions(&link.run_id, &link.path).await?;
    let body = html! {
        p.eyebrow { "Approval" }
        h1 { (title) }
        @if !detail.is_empty() { p.soft { (detail) } }
        (decided(&decisions))
        dl.facts {
            div { dt { "Step" } dd { (link.path) " of " (record.workflow_id) } }
            div { dt { "Run" } dd { code { (link.run_id) } } }
        }
        p.summary { (record.summary) }
    };
    Ok(page_of(status, title, &body))
}

/// A refusal as a page.
pub fn refusal(problem: &Problem) -> Reply {
    page_of(problem.status, &problem.title, &html! { h1 { (problem.title) } p.soft { (problem.detail) } })
}

/// To the second: nobody decides by microseconds.
fn instant(at: Timestamp) -> String {
    let text = at.to_string();
    let text = text.split('.').next().unwrap_or(&text).trim_end_matches('Z').replace('T', " ");
    format!("{text} UTC")
}

/// A page that needs no script, in the UI's own type and colours.
pub fn page_of(status: u16, title: &str, body: &Markup) -> Reply {
    let html = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { (title) }
                link rel="icon" href="/ui/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/ui/css/base.css";
                link rel="stylesheet" href="/ui/css/parts.css";
                link rel="stylesheet" href="/ui/css/page.css";
            }
            body.page {
                header { img src="/ui/icon.svg" alt="" width="24" height="24"; span { "Abide" } }
                main { (body) }
            }
        }
    };
    guarded(Reply::bytes(status, "text/html; charset=utf-8", html.into_string()))
        .header(hyper::header::CACHE_CONTROL, "no-store")
}
