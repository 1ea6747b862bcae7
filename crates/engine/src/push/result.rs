//! What an answer means for the step: one table, from status to failure class.

use abide_core::contract::FailureClass;
use abide_core::run::command::{Fault, Json};
use abide_core::time::{Span, Timestamp};
use serde_json::json;

use super::secrets::Redactor;
use super::target::{Allow, Refusal, Target, check_url};

/// A target that asks for more is not believed.
const LONGEST_WAIT: Span = Span::from_secs(24 * 60 * 60);
/// How much of an answer stands in a failure.
const EXCERPT: usize = 1_000;

/// What came back from a target, or did not.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Answer(Answer),
    /// The target must not be sent to.
    Refused(Refusal),
    /// It was not sent: nobody listened, or the name or certificate was not right.
    NotSent(String),
    /// It was sent, and nothing came back.
    Silence(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
    pub location: Option<String>,
    pub body: Body,
}

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Whole(String),
    TooLarge,
    /// The connection ended in the middle.
    Cut,
}

/// The step's output, or how it failed. Nothing of it shows a secret.
pub fn result_of(
    heard: Heard,
    target: Option<&Target>,
    allow: &Allow,
    redactor: &Redactor,
    now: Timestamp,
) -> Result<Json, Box<Fault>> {
    let host = target.map_or("the target", |target| target.host.as_str());
    let fault = match heard {
        Heard::Answer(answer) => match answer.status {
            200..=299 => match output(&answer, redactor) {
                Ok(output) => return Ok(output),
                Err(fault) => fault,
            },
            300..=399 => redirect(&answer, target, allow),
            _ => failure(&answer, host, redactor, now),
        },
        Heard::Refused(refusal) => fault(Some(FailureClass::Fatal), Refusal::CODE, refusal.to_string()),
        Heard::NotSent(why) => fault(
            Some(FailureClass::Transient),
            "not_sent",
            format!("no connection to {host}, so nothing was sent: {why}"),
        ),
        Heard::Silence(why) => {
            fault(None, "no_answer", format!("{host} was sent the request and did not answer: {why}"))
        }
    };
    Err(Box::new(redactor.fault(*fault)))
}

fn output(answer: &Answer, redactor: &Redactor) -> Result<Json, Box<Fault>> {
    let status = answer.status;
    match &answer.body {
        Body::Whole(text) => Ok(redactor
            .json(text)
            .unwrap_or_else(|| json!({ "status": status, "text": redactor.text(text) }).to_string().into())),
        // It happened, but its result is not known.
        Body::TooLarge => Err(fault(None, "answer_too_large", format!("the answer ({status}) is larger than 1 MiB"))),
        Body::Cut => Err(fault(None, "no_answer", format!("the answer ({status}) ended in the middle"))),
    }
}

/// It is never followed: another host would get what was meant for this one.
fn redirect(answer: &Answer, target: Option<&Target>, allow: &Allow) -> Box<Fault> {
    let status = answer.status;
    let to = answer.location.as_deref().and_then(|location| target?.url.join(location).ok());
    match to.map(|to| check_url(to.as_str(), allow)) {
        Some(Err(refusal)) => {
            let message = format!("the target redirects ({status}), and it is not followed: {refusal}");
            fault(Some(FailureClass::Fatal), Refusal::CODE, message)
        }
        Some(Ok(())) | None => {
            let message = format!("the target redirects ({status}), and it is not followed: write the final address");
            fault(Some(FailureClass::Fatal), "redirect", message)
        }
    }
}

fn failure(answer: &Answer, host: &str, redactor: &Redactor, now: Timestamp) -> Box<Fault> {
    let status = answer.status;
    let class = match status {
        _ if answer.retry_after.is_some() => Some(FailureClass::RateLimited),
        429 => Some(FailureClass::RateLimited),
        401 => Some(FailureClass::Auth),
        403 => Some(FailureClass::Permission),
        409 | 412 => Some(FailureClass::Conflict),
        400 | 422 => Some(FailureClass::Validation),
        // Unknown if the step is `external`, else transient: the rules know which.
        408 | 500.. => None,
        _ => Some(FailureClass::Fatal),
    };
    let text = match &answer.body {
        // Cut after the secrets are out, or half of one would stay.
        Body::Whole(text) => {
            let shown = redactor.json(text).unwrap_or_else(|| redactor.text(text).into());
            shown.chars().take(EXCERPT).collect()
        }
        Body::TooLarge | Body::Cut => String::new(),
    };
    Box::new(Fault {
        tool: (class == Some(FailureClass::Auth)).then(|| host.to_owned()),
        retry_after: answer.retry_after.as_deref().and_then(|text| wait_of(text, now)),
        details: Some(json!({ "status": status, "body": text })),
        ..*fault(class, &status.to_string(), format!("{host} answered {status}"))
    })
}

/// Seconds, or an HTTP date.
fn wait_of(text: &str, now: Timestamp) -> Option<Span> {
    let text = text.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Span::from_secs(seconds.min(LONGEST_WAIT.millis() / 1_000)),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Timestamp::from_micros(at.as_microsecond()).since(now)
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

fn fault(class: Option<FailureClass>, code: &str, message: String) -> Box<Fault> {
    Box::new(Fault { class, message, code: Some(code.into()), ..Fault::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(784_111_777_000_000);

    fn result(heard: Heard) -> Result<Json, Box<Fault>> {
        let target = Target::parse("https://api.example.com/a", &Allow::default()).expect("a target");
        let mut redactor = Redactor::default();
        redactor.hide("KEY", "hunter2");
        result_of(heard, Some(&target), &Allow::default(), &redactor, NOW)
    }

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, retry_after: None, location: None, body: Body::Whole(body.into()) }
    }

    fn failed(status: u16, retry_after: Option<&str>) -> Box<Fault> {
        let retry_after = retry_after.map(Into::into);
        result(Heard::Answer(Answer { retry_after, ..answer(status, "why: hunter2") })).expect_err("a failure")
    }

    #[test]
    fn every_status_has_its_class() {
        use FailureClass::{Auth, Conflict, Fatal, Permission, RateLimited, Validation};
        let table = [
            (400, None, Some(Validation)),
            (401, None, Some(Auth)),
            (402, None, Some(Fatal)),
            (403, None, Some(Permission)),
            (404, None, Some(Fatal)),
            (405, None, Some(Fatal)),
            (408, None, None),
            (408, Some("1"), Some(RateLimited)),
            (409, None, Some(Conflict)),
            (410, None, Some(Fatal)),
            (412, None, Some(Conflict)),
            (418, None, Some(Fatal)),
            (422, None, Some(Validation)),
            (429, None, Some(RateLimited)),
            (429, Some("7"), Some(RateLimited)),
            (451, None, Some(Fatal)),
            (500, None, None),
            (502, None, None),
            (503, None, None),
            (503, Some("7"), Some(RateLimited)),
            (504, None, None),
            (599, None, None),
        ];
        for (status, retry_after, class) in table {
            let fault = failed(status, retry_after);
            assert_eq!((fault.class, fault.code), (class, Some(status.to_string())), "{status} {retry_after:?}");
            assert_eq!(fault.details, Some(json!({ "status": status, "body": "why: [secret KEY]" })));
            assert_eq!(fault.tool.as_deref(), (class == Some(Auth)).then_some("api.example.com"));
        }
    }

    #[test]
    fn a_secret_at_the_end_of_an_excerpt_is_not_cut_in_two() {
        for body in [format!("{}hunter2", "x".repeat(EXCERPT - 4)), r#"{"a":"hunter\u0032"}"#.into()] {
            let fault = result(Heard::Answer(answer(404, &body))).expect_err("a failure");
            assert!(!fault.details.expect("details").to_string().contains("hunt"), "{body}");
        }
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_not_longer_than_a_day() {
        let table = [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("0", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("99999999999", Some(24 * 60 * 60)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", Some(24 * 60 * 60)),
            ("soon", None),
            ("-5", None),
        ];
        for (text, seconds) in table {
            assert_eq!(failed(503, Some(text)).retry_after, seconds.map(Span::from_secs), "{text}");
        }
    }

    #[test]
    fn an_answer_becomes_the_output_without_secrets() {
        let table = [
            (200, r#"{"a" : 1}"#, r#"{"a" : 1}"#),
            (201, "[1,2]", "[1,2]"),
            (200, "fine", r#"{"status":200,"text":"fine"}"#),
            (204, "", r#"{"status":204,"text":""}"#),
            (200, r#"{"you sent":"hunter2"}"#, r#"{"you sent":"[secret KEY]"}"#),
            (200, "you sent hunter2", r#"{"status":200,"text":"you sent [secret KEY]"}"#),
        ];
        for (status, body, output) in table {
            assert_eq!(result(Heard::Answer(answer(status, body))).expect("fine").as_ref(), output);
        }
        for body in [Body::TooLarge, Body::Cut] {
            let fault = result(Heard::Answer(Answer { body, ..answer(200, "") })).expect_err("no result");
            assert_eq!(fault.class, None, "it may have happened");
        }
    }

    #[test]
    fn a_redirect_is_not_followed() {
        let table = [
            (Some("http://169.254.169.254/latest"), "target_not_allowed"),
            (Some("//10.0.0.1/"), "target_not_allowed"),
            (Some("file:///etc/passwd"), "target_not_allowed"),
            (Some("https://other.example.com/"), "redirect"),
            (Some("/b"), "redirect"),
            (None, "redirect"),
        ];
        for (location, code) in table {
            let answer = Answer { location: location.map(Into::into), ..answer(302, "") };
            let fault = result(Heard::Answer(answer)).expect_err("not followed");
            assert_eq!((fault.class, fault.code.as_deref()), (Some(FailureClass::Fatal), Some(code)), "{location:?}");
        }
    }

    #[test]
    fn what_was_not_sent_is_transient_and_silence_is_left_to_the_rules() {
        let fault = |heard| result(heard).expect_err("a failure");
        let refusal = check_url("https://10.0.0.1", &Allow::default()).expect_err("private");
        assert_eq!(fault(Heard::NotSent("refused".into())).class, Some(FailureClass::Transient));
        assert_eq!(fault(Heard::Silence("timed out".into())).class, None);
        let refused = fault(Heard::Refused(refusal));
        assert_eq!((refused.class, refused.code.as_deref()), (Some(FailureClass::Fatal), Some("target_not_allowed")));
        assert!(!fault(Heard::Silence("at hunter2".into())).message.contains("hunter2"));
    }
}
