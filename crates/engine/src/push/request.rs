//! The request of an `http` step on its way out: what was stored, with secrets and the callback's address filled in at the
//! places where the document has them, and nowhere else.

use std::collections::BTreeMap;

use abide_core::contract::FailureClass;
use abide_core::expression::{readable_text, split_list, split_object};
use abide_core::run::command::Fault;
use abide_core::run::{CALLBACK_PLACEHOLDER, placeholder};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::secrets::{Redactor, Secrets};

/// As the rules store it.
#[derive(Debug, Deserialize)]
pub struct Stored {
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Box<RawValue>>,
    #[serde(default)]
    answer: Answer,
    #[serde(default)]
    fill: Vec<Fill>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Answer {
    #[default]
    Response,
    Callback,
}

/// A place and what may be filled in there.
#[derive(Debug, Deserialize)]
struct Fill {
    pointer: String,
    secret: Option<String>,
    #[serde(default)]
    callback: bool,
}

/// Ready to be sent. Its texts hold secrets, so it has nothing to show.
pub struct Outgoing {
    pub method: Method,
    pub url: String,
    pub headers: HeaderMap,
    pub body: Option<Vec<u8>>,
    pub redactor: Redactor,
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("method", &self.method).finish_non_exhaustive()
    }
}

/// The address that a target answers at, and the part of it that nobody else may know.
#[derive(Clone)]
pub struct CallbackAddress {
    pub url: String,
    pub token: String,
}

impl Stored {
    pub fn parse(json: &str) -> Result<Stored, Box<Fault>> {
        serde_json::from_str(json)
            .map_err(|error| invalid("request_not_readable", format!("the request is not one: {error}")))
    }

    /// The target answers later; what it says at once is only that it will.
    pub fn awaits_callback(&self) -> bool {
        self.answer == Answer::Callback
    }

    pub fn filled(self, secrets: &Secrets, callback: Option<&CallbackAddress>) -> Result<Outgoing, Box<Fault>> {
        let mut filling = Filling { fill: &self.fill, secrets, callback, redactor: Redactor::default() };
        if let Some(callback) = callback {
            filling.redactor.hide("callback.url", &callback.token);
        }
        let method = Method::from_bytes(self.method.as_bytes())
            .map_err(|_| invalid("request_not_readable", "the method is not one".into()))?;
        let url = filling.text("/url", &self.url)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let value = filling.text(&format!("/headers/{name}"), value)?;
            let (name, value) = header(name, &value)?;
            headers.insert(name, value);
        }
        let body = match self.body.as_deref().map(RawValue::get) {
            None | Some("null") => None,
            Some(body) => Some(filling.body(body, &headers)?),
        };
        if body.is_some() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(Outgoing { method, url, headers, body, redactor: filling.redactor })
    }
}

struct Filling<'a> {
    fill: &'a [Fill],
    secrets: &'a Secrets,
    callback: Option<&'a CallbackAddress>,
    redactor: Redactor,
}

impl Filling<'_> {
    /// One pass from left to right: what was filled in is not looked at again.
    fn text(&mut self, pointer: &str, text: &str) -> Result<String, Box<Fault>> {
        let mut places = Vec::new();
        for fill in self.fill.iter().filter(|fill| covers(&fill.pointer, pointer)) {
            match &fill.secret {
                Some(name) => places.push((placeholder(name), Some(name))),
                None if fill.callback => places.push((CALLBACK_PLACEHOLDER.to_owned(), None)),
                None => {}
            }
        }
        let (mut filled, mut rest) = (String::new(), text);
        let first = |rest: &str| {
            let found = places.iter().filter_map(|(mark, name)| Some((rest.find(mark.as_str())?, mark.len(), *name)));
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, length, name)) = first(rest) {
            filled.push_str(&rest[..at]);
            filled.push_str(self.value(name.map(String::as_str))?);
            if let Some(name) = name {
                self.redactor.hide(name, self.secrets.get(name).unwrap_or_default());
            }
            rest = &rest[at + length..];
        }
        Ok(filled + rest)
    }

    fn value(&self, secret: Option<&str>) -> Result<&str, Box<Fault>> {
        match secret {
            Some(name) => self.secrets.get(name).ok_or_else(|| {
                let message =
                    format!("there is no secret {name}; give the server one and resolve this step with `retry`");
                invalid("secret_missing", message)
            }),
            None => self
                .callback
                .map(|callback| callback.url.as_str())
                .ok_or_else(|| invalid("no_public_url", "this engine has no address for callbacks".into())),
        }
    }

    /// The stored bytes, unless something is filled in. A text for a target that does not want JSON goes without quotes.
    fn body(&mut self, body: &str, headers: &HeaderMap) -> Result<Vec<u8>, Box<Fault>> {
        let wants_json =
            headers.get(CONTENT_TYPE).is_none_or(|kind| String::from_utf8_lossy(kind.as_bytes()).contains("json"));
        let is_text = body.starts_with('"') && !wants_json;
        if !is_text && !self.fill.iter().any(|fill| fill.pointer.starts_with("/body")) {
            return Ok(body.as_bytes().to_vec());
        }
        let unreadable = || invalid("request_not_readable", "the body is not JSON".into());
        if is_text {
            let text = readable_text(body).ok_or_else(unreadable)?;
            return Ok(self.text("/body", &text)?.into_bytes());
        }
        let filled = self.below("/body", body.trim())?.ok_or_else(unreadable)?;
        Ok(filled.into_bytes())
    }

    /// JSON text with everything filled in; what needs no filling stays as it is written. None: it is not JSON.
    fn below(&mut self, pointer: &str, json: &str) -> Result<Option<String>, Box<Fault>> {
        let mut filled = String::with_capacity(json.len());
        let (open, members, close) = match json.as_bytes().first() {
            Some(b'{') => ('{', split_object(json), '}'),
            Some(b'[') => {
                let items = split_list(json);
                ('[', items.map(|items| items.into_iter().map(|item| ("", item)).collect()), ']')
            }
            Some(b'"') => {
                let Some(text) = readable_text(json) else { return Ok(None) };
                let with_secrets = self.text(pointer, &text)?;
                let unchanged = with_secrets == text;
                return Ok(Some(if unchanged { json.to_owned() } else { Value::from(with_secrets).to_string() }));
            }
            _ => return Ok(Some(json.to_owned())),
        };
        let Some(members) = members else { return Ok(None) };
        filled.push(open);
        for (at, (key, value)) in members.into_iter().enumerate() {
            let Some(name) = (if key.is_empty() { Some(at.to_string().into()) } else { readable_text(key) }) else {
                return Ok(None);
            };
            let name = name.replace('~', "~0").replace('/', "~1");
            let Some(value) = self.below(&format!("{pointer}/{name}"), value)? else { return Ok(None) };
            filled.push_str(if at == 0 { "" } else { "," });
            filled.push_str(key);
            filled.push_str(if key.is_empty() { "" } else { ":" });
            filled.push_str(&value);
        }
        filled.push(close);
        Ok(Some(filled))
    }
}

/// An expression may give a list or a map: its places are below the one that the document has.
fn covers(place: &str, pointer: &str) -> bool {
    pointer.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Headers that the engine or the connection sets; another value would break the request or its promises.
const OWN: [&str; 14] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-connection",
    "idempotency-key",
    "traceparent",
    "tracestate",
];

/// Whether a document may set this header. A line break in a value would be a header, or a request, of somebody else's.
pub fn check_header(name: &str, value: &str) -> Result<(), String> {
    let lower = name.to_ascii_lowercase();
    if OWN.contains(&lower.as_str()) || lower.starts_with("abide-") || lower.starts_with("webhook-") {
        return Err(format!("the header {lower} is set by the engine"));
    }
    if HeaderName::from_bytes(lower.as_bytes()).is_err() {
        return Err(format!("{name:?} is not the name of a header"));
    }
    if HeaderValue::from_bytes(value.as_bytes()).is_err() {
        return Err(format!("the value of the header {lower} has a line break or another control character"));
    }
    Ok(())
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Box<Fault>> {
    let bad = |message| invalid("header_not_allowed", message);
    check_header(name, value).map_err(bad)?;
    let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_bytes(value.as_bytes()).ok());
    let (name, mut value) = parsed.ok_or_else(|| bad(format!("{name:?} is not a header")))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// A person can correct it: a secret, a setting or the request.
pub fn invalid(code: &str, message: String) -> Box<Fault> {
    let fault = Fault { message, code: Some(code.into()), ..Fault::default() };
    Box::new(Fault { class: Some(FailureClass::Validation), ..fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(json: &str, secrets: &[(&str, &str)]) -> Result<Outgoing, String> {
        let secrets = Secrets::of(secrets.iter().copied());
        let callback = CallbackAddress { url: "https://here/v1/callbacks/t0k".into(), token: "t0k".into() };
        let stored = Stored::parse(json).map_err(|fault| fault.message)?;
        stored.filled(&secrets, Some(&callback)).map_err(|fault| fault.message)
    }

    fn body(outgoing: &Outgoing) -> &str {
        std::str::from_utf8(outgoing.body.as_deref().unwrap_or_default()).expect("text")
    }

    #[test]
    fn a_secret_is_filled_in_where_the_document_has_it_and_nowhere_else() {
        let json = r#"{"method":"POST","url":"https://a/{{secret:K}}","headers":{"authorization":"Bearer {{secret:K}}","x-a":"{{secret:K}}"},
            "body":{"a":"{{secret:K}} {{callback.url}}","b":"{{secret:K}} {{callback.url}}","c/d":["{{secret:K}}","{{secret:L}}"]},
            "fill":[{"pointer":"/url","secret":"K"},{"pointer":"/headers/authorization","secret":"K"},
                    {"pointer":"/body/a","secret":"K"},{"pointer":"/body/a","callback":true},{"pointer":"/body/c~1d","secret":"K"}]}"#;
        let out = filled(json, &[("K", "{{callback.url}}\""), ("L", "other")]).expect("filled");
        assert_eq!(out.url, "https://a/{{callback.url}}\"");
        assert_eq!(out.headers["authorization"], "Bearer {{callback.url}}\"");
        assert_eq!(out.headers["x-a"], "{{secret:K}}");
        assert_eq!(
            body(&out),
            r#"{"a":"{{callback.url}}\" https://here/v1/callbacks/t0k","b":"{{secret:K}} {{callback.url}}","c/d":["{{callback.url}}\"","{{secret:L}}"]}"#
        );
        assert!(!format!("{out:?}").contains("callback"), "{out:?}");
        assert!(!format!("{:?}", out.headers).contains("Bearer"));
    }

    #[test]
    fn a_missing_secret_is_named() {
        let json =
            r#"{"method":"GET","url":"https://a/{{secret:K}}","body":null,"fill":[{"pointer":"/url","secret":"K"}]}"#;
        assert!(filled(json, &[]).expect_err("no secret").contains("no secret K"));
        assert!(filled(json, &[("K", "")]).is_err());
    }

    #[test]
    fn a_body_without_secrets_is_sent_as_it_was_stored() {
        let out = filled(r#"{"method":"PUT","url":"https://a","body":{"n": 1.00}}"#, &[]).expect("filled");
        assert_eq!(
            (body(&out), &out.headers["content-type"]),
            (r#"{"n": 1.00}"#, &HeaderValue::from_static("application/json"))
        );
        let text = r#"{"method":"PUT","url":"https://a","headers":{"content-type":"text/plain"},"body":"a\nb"}"#;
        assert_eq!(body(&filled(text, &[]).expect("filled")), "a\nb");
        assert!(filled(r#"{"method":"GET","url":"https://a","body":null}"#, &[]).expect("filled").body.is_none());
    }

    #[test]
    fn headers_cannot_be_smuggled() {
        for (name, value) in [
            ("host", "evil"),
            ("Content-Length", "0"),
            ("transfer-encoding", "chunked"),
            ("connection", "close"),
            ("idempotency-key", "mine"),
            ("abide-run-id", "run_x"),
            ("webhook-signature", "v1,"),
            ("x-a\r\nhost", "evil"),
            ("x-a", "a\r\nhost: evil"),
            ("x-a", "a\nb"),
            ("x-a", "a\0b"),
            ("", "a"),
        ] {
            assert!(check_header(name, value).is_err(), "{name:?}: {value:?}");
        }
        assert_eq!(check_header("X-Api-Key", "grüße"), Ok(()));
        let json = r#"{"method":"GET","url":"https://a","headers":{"x-a":"{{secret:K}}"},"body":null,"fill":[{"pointer":"/headers/x-a","secret":"K"}]}"#;
        let why = filled(json, &[("K", "hunter2\r\nhost: evil")]).expect_err("a line break");
        assert!(!why.contains("hunter2"), "{why}");
    }
}
