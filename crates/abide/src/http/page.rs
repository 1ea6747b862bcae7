//! The UI: one page at every screen's address, and the files it is made of, out of the program itself.

use abide_api::{Code, Problem};
use hyper::header::{self, HeaderName};
use rust_embed::RustEmbed;
use serde_json::Value;

use super::call::{Answered, Call, Reply};

/// What a page may load and do. Nothing comes from elsewhere, nothing stands inline, no text becomes markup or script;
/// what a browser holds back because of it, it reports.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; \
                          require-trusted-types-for 'script'; trusted-types 'none'; report-uri /csp-reports";
/// So many reports are logged one by one, then every so many-th.
const LOGGED_REPORTS: u64 = 100;
/// Of a violation's report, so much is logged.
const LOGGED_CHARS: usize = 200;

/// In debug builds the files are read from the source folder, so that an edit shows at the next reload.
#[derive(RustEmbed)]
#[folder = "ui/"]
struct Files;

/// The page at the screens' addresses. Which screen it is, its script reads from the address.
pub async fn screen(call: Call) -> Answered {
    file(&call, "index.html")
}

/// `GET /ui/{path}`
pub async fn asset(call: Call) -> Answered {
    file(&call, call.param("path"))
}

fn file(call: &Call, path: &str) -> Answered {
    let missing = || Problem::new(Code::NotFound, "There is no such file of the UI.");
    let kind = content_type(path).ok_or_else(missing)?;
    let file = Files::get(path).ok_or_else(missing)?;
    let etag = etag(&file.metadata.sha256_hash());
    let known = call.headers.get_all(header::IF_NONE_MATCH).iter().any(|value| names(value.as_bytes(), &etag));
    let reply = if known { Reply::empty(304) } else { Reply::bytes(200, kind, file.data.into_owned()) };
    // Asked again each time, answered with 304: a new version of the program is never half of an old page.
    Ok(guarded(reply).header(header::ETAG, etag).header(header::CACHE_CONTROL, "no-cache"))
}

/// What every page says about itself to the browser.
pub fn guarded(reply: Reply) -> Reply {
    reply
        .header(header::CONTENT_SECURITY_POLICY, POLICY)
        .header(header::REFERRER_POLICY, "no-referrer")
        .header(HeaderName::from_static("cross-origin-opener-policy"), "same-origin")
}

fn content_type(path: &str) -> Option<&'static str> {
    match path.rsplit_once('.')?.1 {
        "html" => Some("text/html; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        _ => None,
    }
}

/// Half of the hash tells versions apart.
fn etag(hash: &[u8; 32]) -> String {
    let mut tag = String::from("\"");
    for byte in &hash[..16] {
        tag.push_str(&format!("{byte:02x}"));
    }
    tag.push('"');
    tag
}

/// Whether an If-None-Match names this version.
fn names(value: &[u8], etag: &str) -> bool {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == "*" || one == etag)
}

/// `POST /csp-reports`: a browser held something back. It is counted and logged; anybody may send such a thing, so that
/// nothing else happens.
pub async fn report(call: Call) -> Answered {
    let said: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let of = |name: &str| {
        let text = said["csp-report"][name].as_str().unwrap_or_default();
        text.chars().take(LOGGED_CHARS).collect::<String>()
    };
    let count = call.api.metrics.csp_report();
    // Anybody could fill the log; beyond the first ones the number tells enough.
    if count > LOGGED_REPORTS && !count.is_multiple_of(LOGGED_REPORTS) {
        return Ok(Reply::empty(204));
    }
    // Quoted, because the words come from outside.
    tracing::warn!(directive = ?of("effective-directive"), blocked = ?of("blocked-uri"), at = ?of("document-uri"), "a page broke its policy");
    Ok(Reply::empty(204))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_type_and_the_page_is_there() {
        assert!(Files::get("index.html").is_some());
        // Types are for the tests alone.
        for path in Files::iter().filter(|path| !path.ends_with(".d.ts")) {
            assert!(content_type(&path).is_some(), "{path} would not be served");
        }
    }

    #[test]
    fn a_version_that_is_known_is_not_sent_again() {
        let tag = etag(&[7; 32]);
        assert!(names(format!("\"x\", W/{tag}").as_bytes(), &tag) && names(b"*", &tag) && !names(b"\"x\"", &tag));
    }
}
