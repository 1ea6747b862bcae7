//! One-time links: a page that shows what is to be decided. Looking changes nothing; only its button decides, once.

use abide_api::engine::{duration, identifier};
use abide_api::runs::{Link as LinkView, MakeLink};
use abide_api::{Code, Problem};
use abide_core::ids::{Digest, Path};
use abide_core::run::command::{Actor, Ask, Command};
use abide_core::time::Span;
use abide_engine::reads::ApprovalView;
use abide_engine::request::{Access, Link, Request, ToRun, What};

use super::access::token;
use super::call::{Answered, Call, Reply};

const USUAL_LIFE: Span = Span::from_secs(7 * 86_400);
const POLICY: &str = "default-src 'none'; style-src 'sha256-8ekn0a/8PGtsTq3pdQh9oYM/rzl0+e36o9Ple2NbOD0='; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// `POST /v1/runs/{id}/approvals/{step}/links`
pub async fn make(call: Call, asked: MakeLink) -> Answered {
    let whom = identifier("/for", &asked.whom)?.to_owned();
    let life = asked.expires_in.as_deref().map(|text| duration("/expires_in", text)).transpose()?.unwrap_or(USUAL_LIFE);
    let (run_id, path) = (call.run_id(), Path::from(call.param("step_id")));
    let Some(approval) = call.engine.approval(&run_id, &path).await? else {
        let record = call.engine.run(&run_id).await?;
        let problem = Problem::new(Code::NotWaiting, format!("{path} does not wait for a decision."));
        return Err(problem
            .with("current_state", record.state.as_str())
            .with("allowed", Vec::<serde_json::Value>::new()));
    };
    // Whoever makes the link vouches for whom it is for: it may decide wherever a group is asked.
    let groups = approval.approvers.iter().filter_map(|name| name.strip_prefix("role:")).map(Into::into).collect();
    let token = token(43);
    let expires_at = call.engine.clock().now() + life;
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

/// The link of this page, if it still decides.
async fn usable(call: &Call) -> Result<Link, Problem> {
    let hash = Digest::of(call.param("token").as_bytes());
    let link = call.api.engine.link(hash).await?;
    let link = link.ok_or_else(|| Problem::new(Code::NotFound, "There is no such link."))?;
    match link.used_at {
        Some(at) => Err(Problem::new(Code::TokenUsed, format!("This link was used at {at}."))),
        None if link.expires_at <= call.engine.clock().now() => {
            Err(Problem::new(Code::TokenExpired, format!("This link expired at {}.", link.expires_at)))
        }
        None => Ok(link),
    }
}

/// `GET /links/{token}`
pub async fn show(call: Call) -> Answered {
    let link = match usable(&call).await {
        Ok(link) => link,
        Err(problem) => return Ok(page(problem.status, &problem.title, &format!("<p>{}</p>", text(&problem.detail)))),
    };
    let engine = call.api.engine.in_namespace(link.namespace.clone());
    let record = engine.run(&link.run_id).await?;
    let Some(approval) = engine.approval(&link.run_id, &link.path).await? else {
        return Ok(page(200, "Nothing to decide", &format!("<p>{}</p>", text(&record.summary))));
    };
    Ok(page(200, &approval.title, &question(&approval, &link.whom)))
}

fn question(approval: &ApprovalView, whom: &str) -> String {
    let subject = approval.subject.as_deref().map(pretty).unwrap_or_default();
    let deadline = approval.deadline.map(|at| format!("<p>Until {at}.</p>")).unwrap_or_default();
    format!(
        "<p>You decide as <b>{}</b> about step <b>{}</b> of <b>{}</b>.</p>{deadline}<pre>{}</pre>\
         <form method=\"post\"><input type=\"hidden\" name=\"subject_digest\" value=\"{}\">\
         <label>Comment <input name=\"comment\" maxlength=\"1000\"></label>\
         <p><button name=\"decision\" value=\"approve\">Approve</button> \
         <button name=\"decision\" value=\"reject\">Reject</button></p></form>",
        text(whom),
        text(approval.step_id.as_str()),
        text(approval.workflow_id.as_str()),
        text(&subject),
        approval.subject_digest,
    )
}

fn pretty(json: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json).ok();
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

/// `POST /links/{token}`
pub async fn decide(call: Call) -> Answered {
    let link = usable(&call).await?;
    let fields: Vec<(String, String)> =
        form_urlencoded::parse(&call.body).map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let approve = match field("decision") {
        Some("approve") => true,
        Some("reject") => false,
        _ => return Err(Problem::invalid("decision", "It is approve or reject.")),
    };
    let ask = Ask::Decide {
        step_id: Some(link.path.clone()),
        by: link.whom.clone(),
        approve,
        comment: field("comment").filter(|comment| !comment.is_empty()).map(Into::into),
        form: None,
        subject_digest: field("subject_digest").and_then(Digest::parse),
        via: Some("link".into()),
    };
    let command = Command::new(Actor::user(link.whom.clone()), ask);
    let to_run = ToRun { groups: link.groups, link: Some(link.token_hash), ..ToRun::new(link.run_id.clone(), command) };
    let what = What::Run(Box::new(to_run));
    call.api.engine.ask(Request { namespace: link.namespace.clone(), idempotency: None, what }).await?;
    let record = call.api.engine.in_namespace(link.namespace).run(&link.run_id).await?;
    let said = if approve { "Approved" } else { "Rejected" };
    Ok(page(200, said, &format!("<p>{}</p>", text(&record.summary))))
}

/// Text of others is text, never markup.
pub fn text(raw: &str) -> String {
    let mut safe = String::with_capacity(raw.len());
    for letter in raw.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}pre{background:#8882;padding:1rem;overflow:auto}button{font:inherit;padding:.5rem 1.5rem}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}";

pub fn page(status: u16, title: &str, body: &str) -> Reply {
    let title = text(title);
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{body}</html>"
    );
    Reply::bytes(status, "text/html; charset=utf-8", html)
        .header(hyper::header::CONTENT_SECURITY_POLICY, POLICY)
        .header(hyper::header::REFERRER_POLICY, "no-referrer")
        .header(hyper::header::CACHE_CONTROL, "no-store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_style_that_the_page_has() {
        let hash = Digest::of(STYLE.as_bytes());
        let named = POLICY.split("sha256-").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default();
        assert_eq!(named, base64(&hash.0), "the page's style has changed: put its hash into the policy");
    }

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let group = chunk.iter().fold(0u32, |all, byte| (all << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
            for n in 0..4 {
                let letter = LETTERS[(group >> (18 - 6 * n)) as usize & 63];
                text.push(if n <= chunk.len() { char::from(letter) } else { '=' });
            }
        }
        text
    }

    #[test]
    fn text_of_others_is_never_markup() {
        assert_eq!(text("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
    }
}
