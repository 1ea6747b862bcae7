//! The request of an `http` step, as it is stored: everything but secrets and callback addresses, which are filled in
//! when it is sent, and only at the places where the document has them.

use crate::definition::{Http, HttpAnswer};
use crate::expression::{EvalError, Template};
use crate::run::advance::{Decided, Draft};
use crate::run::scope::{Here, json_text};

impl Draft<'_> {
    pub(super) fn http_request(&self, http: &Http, here: &Here) -> Decided<Result<String, EvalError>> {
        let mut fill = Vec::new();
        let url = match self.render_text(&http.url, here)? {
            Ok(url) => url,
            Err(error) => return Ok(Err(error)),
        };
        note_deferred("/url", &http.url, &mut fill);
        let mut headers = Vec::new();
        for (name, value) in &http.headers {
            match self.render_text(value, here)? {
                Ok(text) => headers.push(format!("{}:{}", json_text(name), json_text(&text))),
                Err(error) => return Ok(Err(error)),
            }
            note_deferred(&format!("/headers/{name}"), value, &mut fill);
        }
        let body = match &http.body {
            Some(body) => match self.render(body, here)? {
                Ok(json) => {
                    note_deferred("/body", body, &mut fill);
                    json
                }
                Err(error) => return Ok(Err(error)),
            },
            None => "null".to_owned(),
        };
        let answer = match http.answer {
            HttpAnswer::Response => "response",
            HttpAnswer::Callback => "callback",
        };
        Ok(Ok(format!(
            "{{\"method\":{},\"url\":{},\"headers\":{{{}}},\"body\":{body},\"answer\":\"{answer}\",\"fill\":[{}]}}",
            json_text(&http.method),
            json_text(&url),
            headers.join(","),
            fill.join(",")
        )))
    }
}

/// The text that stands for a secret until the request is sent.
pub fn placeholder(name: &str) -> String {
    format!("{{{{secret:{name}}}}}")
}

/// The text that stands for the callback's address until the request is sent.
pub const CALLBACK_PLACEHOLDER: &str = "{{callback.url}}";

/// Remembers which names may be filled in where. A value from outside that looks like a placeholder gets nothing that
/// the document does not already send to the same place.
fn note_deferred(at: &str, template: &Template, fill: &mut Vec<String>) {
    for (pointer, expression) in template.references() {
        for reference in expression.references() {
            let what = match reference.keys.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["secrets", name, ..] => format!("\"secret\":{}", json_text(name)),
                ["callback", ..] => "\"callback\":true".to_owned(),
                _ => continue,
            };
            fill.push(format!("{{\"pointer\":{},{what}}}", json_text(&format!("{at}{pointer}"))));
        }
    }
}
