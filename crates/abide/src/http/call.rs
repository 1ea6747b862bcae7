//! One request on its way to a handler, and the answer on its way back.

use std::sync::Arc;

use abide_api::engine::Caller;
use abide_api::keys::Role;
use abide_api::{Code, Problem};
use abide_core::contract::RunState;
use abide_core::ids::{Digest, Namespace, RunId};
use abide_core::run::command::{Actor, Ask, Command, Json};
use abide_engine::request::{Answer, Idempotency, LeaseRef, Request, ToRun, Told, What};
use abide_engine::{Engine, Error};
use http_body_util::combinators::BoxBody;
use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Api;
use super::routes::Route;

/// Nesting that is read.
const DEEPEST: usize = 64;
const LONGEST_KEY: usize = 255;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Who {
    pub namespace: Namespace,
    pub role: Role,
    /// None: no keys are used here, everybody is admin.
    pub key: Option<Arc<super::access::Grant>>,
}

impl Who {
    pub fn anybody() -> Who {
        Who { namespace: Namespace::from("default"), role: Role::Admin, key: None }
    }

    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("anonymous", |key| &key.principal)
    }

    /// May see the bytes of inputs and outputs.
    pub fn sees_payloads(&self) -> bool {
        matches!(self.role, Role::Operator | Role::Admin)
    }
}

/// A request that found its route and whose caller is known.
pub struct Call {
    pub api: Arc<Api>,
    pub from: std::net::IpAddr,
    pub engine: Engine,
    pub who: Who,
    pub params: Vec<(String, String)>,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub idempotency: Option<Idempotency>,
}

impl Call {
    pub fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub fn run_id(&self) -> RunId {
        RunId::from(self.param("run_id"))
    }

    /// A query parameter that may be given once.
    pub fn one(&self, name: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.query.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let first = values.next();
        match values.next() {
            Some(_) => Err(Problem::invalid(name, "Give it once.")),
            None => Ok(first),
        }
    }

    /// Refuses parameters that the route does not know, so that a mistyped filter is not an empty one.
    pub fn only(&self, known: &[&str]) -> Result<(), Problem> {
        let fits =
            |name: &str| known.iter().any(|known| *known == name || (*known == "label." && name.starts_with("label.")));
        match self.query.iter().find(|(name, _)| !fits(name)) {
            Some((name, _)) => Err(Problem::invalid(
                name.clone(),
                format!("There is no such parameter; there are: {}.", known.join(", ")),
            )),
            None => Ok(()),
        }
    }

    /// A number in a range.
    pub fn number<N>(&self, name: &str, usual: N, range: std::ops::RangeInclusive<N>) -> Result<N, Problem>
    where
        N: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
    {
        let Some(text) = self.one(name)? else { return Ok(usual) };
        let out = || Problem::invalid(name, format!("It must be a number from {} to {}.", range.start(), range.end()));
        text.parse::<N>().ok().filter(|number| range.contains(number)).ok_or_else(out)
    }

    /// Who reports, when a worker does.
    pub fn worker(&self) -> Caller<'_> {
        Caller { name: self.who.key.as_ref().map(|key| key.principal.as_str()) }
    }

    pub fn actor(&self) -> Actor {
        Actor::user(self.who.name())
    }

    /// Only if the run still has this version.
    pub fn expected_seq(&self) -> Result<Option<u64>, Problem> {
        let Some(value) = self.headers.get("if-match") else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(None);
        }
        let number = text.trim_start_matches("W/").trim_matches('"').parse::<u64>();
        number.map(Some).map_err(|_| Problem::new(Code::VersionMismatch, format!("{text} is not a version of a run.")))
    }

    pub async fn ask(&self, what: What) -> Result<Answer, Error> {
        let namespace = self.who.namespace.clone();
        self.engine.ask(Request { namespace, idempotency: self.idempotency.clone(), what }).await
    }

    /// What was answered to the same request under its Idempotency-Key before.
    pub async fn said_before(&self) -> Result<Option<String>, Problem> {
        if self.idempotency.is_none() {
            return Ok(None);
        }
        match self.ask(What::Recall).await? {
            Answer::Said(said) => Ok(Some(said)),
            Answer::Unsaid => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks one part of what takes many requests. Under a key a part that was done is not done again.
    pub async fn ask_part(&self, part: &str, what: What) -> Result<Answer, Error> {
        let (namespace, idempotency) =
            (self.who.namespace.clone(), self.idempotency.as_ref().map(|whole| whole.of_part(part)));
        self.engine.ask(Request { namespace, idempotency, what }).await
    }

    /// Sends a command to the run that the path names.
    pub async fn command(&self, ask: Ask) -> Result<Told, Problem> {
        self.command_with(|command| ToRun::new(self.run_id(), command), ask).await
    }

    pub async fn command_with(&self, to_run: impl FnOnce(Command) -> ToRun, ask: Ask) -> Result<Told, Problem> {
        let to_run = to_run(Command::new(self.actor(), ask));
        let to_run = ToRun { expected_seq: self.expected_seq()?, ..to_run };
        match self.ask(What::Run(Box::new(to_run))).await? {
            Answer::Run(told) => Ok(*told),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a command that is one part of what the request does, beside its idempotency key.
    pub async fn command_unkeyed(&self, ask: Ask) -> Result<Told, Problem> {
        let what = What::Run(Box::new(ToRun::new(self.run_id(), Command::new(self.actor(), ask))));
        let namespace = self.who.namespace.clone();
        match self.engine.ask(Request { namespace, idempotency: None, what }).await? {
            Answer::Run(told) => Ok(*told),
            other => Err(unexpected(&other)),
        }
    }

    /// The record as it is now, or only what identifies it when that is all the caller wants.
    pub async fn run_answer(&self, status: u16, told: &Told) -> Result<Reply, Problem> {
        let reply = if self.wants_little() {
            Reply::json(status, &Little { run_id: &told.run_id, state: told.state, as_of_seq: told.seq })
        } else {
            let record = self.engine.run(&told.run_id).await?;
            Reply::json(status, &record).etag(record.as_of_seq)
        };
        Ok(reply.location(format!("/v1/runs/{}", told.run_id)).replayed(told.replayed))
    }

    fn wants_little(&self) -> bool {
        self.headers.get("prefer").is_some_and(|value| value.as_bytes() == b"return=minimal")
    }
}

struct Listed<T> {
    name: &'static str,
    items: T,
    next_cursor: Option<String>,
}

impl<T: Serialize> Serialize for Listed<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(self.name, &self.items)?;
        map.serialize_entry("next_cursor", &self.next_cursor)?;
        map.end()
    }
}

/// The fields that identify a run.
#[derive(Serialize)]
struct Little<'a> {
    run_id: &'a RunId,
    state: RunState,
    as_of_seq: u64,
}

pub fn unexpected(answer: &Answer) -> Problem {
    tracing::error!(?answer, "the engine answered something else");
    Problem::new(Code::Internal, "The engine answered something else; it is logged.")
}

/// JSON of a request as the rules take it.
pub fn json(raw: Option<abide_api::Raw>) -> Option<Json> {
    raw.map(|raw| Box::<str>::from(raw).into())
}

/// A stored payload as it goes out: exactly the bytes that came in.
pub fn payload(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

/// Reads the body as what the route takes. An empty body is `{}` where nothing is needed.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.is_empty()
        && let Ok(nothing) = serde_json::from_slice(b"{}")
    {
        return Ok(nothing);
    }
    check_text(body)?;
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let pointer = pointer(error.path());
        unreadable(body, &pointer, error.inner())
    })?;
    reader.end().map_err(|error| unreadable(body, "", &error))?;
    Ok(read)
}

/// The epoch at the top of a report, also where the rest of it is cut off or is no JSON.
pub fn epoch_in(body: &[u8]) -> Option<u64> {
    let (mut at, mut depth) = (0usize, 0usize);
    while let Some(byte) = body.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(body, at)?;
                if depth == 1
                    && body.get(at..end) == Some(b"\"epoch\"")
                    && let Some(epoch) = number_after_colon(body.get(end..)?)
                {
                    return Some(epoch);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

fn end_of_string(body: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        match body.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// A whole number that something follows: one that was cut off is another number.
fn number_after_colon(rest: &[u8]) -> Option<u64> {
    let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = matches!(rest.get(digits)?, b',' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
    std::str::from_utf8(&rest[..digits]).ok().filter(|_| ends)?.parse().ok()
}

/// UTF-8, no byte order mark, not too deep: before anything is read that might recurse.
fn check_text(body: &[u8]) -> Result<(), Problem> {
    let malformed = |offset: usize, why: &str| {
        Problem::new(Code::MalformedJson, format!("{why} at byte {offset}.")).with("offset", offset)
    };
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(malformed(0, "There is a byte order mark"));
    }
    if let Err(error) = std::str::from_utf8(body) {
        return Err(malformed(error.valid_up_to(), "It is not UTF-8"));
    }
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (offset, byte) in body.iter().enumerate() {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => quoted = false,
            (true, _) => {}
            (false, b'"') => quoted = true,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            (false, _) => {}
        }
        if depth > DEEPEST {
            let detail = format!("Values are nested more than {DEEPEST} deep at byte {offset}.");
            return Err(Problem::new(Code::JsonTooDeep, detail).with("offset", offset));
        }
    }
    Ok(())
}

/// serde's path as a JSON pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
            Segment::Enum { variant } => pointer.push_str(&format!("/{variant}")),
            Segment::Unknown => {}
        }
    }
    pointer
}

fn unreadable(body: &[u8], pointer: &str, error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    let said = text.split(" at line ").next().unwrap_or(&text).to_owned();
    let beyond = said.contains("out of range")
        || said.contains("surrogate")
        || said.contains("hex escape")
        || said.contains("control character");
    if said.starts_with("duplicate field") {
        return Problem::new(Code::DuplicateKey, format!("There is a {said}.")).field(pointer, said);
    }
    if error.is_data() || beyond {
        return Problem::invalid(pointer, said);
    }
    let before: usize =
        body.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(|line| line.len() + 1).sum();
    let offset = (before + error.column().saturating_sub(1)).min(body.len());
    Problem::new(Code::MalformedJson, format!("The body is not JSON: {said} at byte {offset}.")).with("offset", offset)
}

/// The key under which a request is done once. It belongs to who asks and to the route, so that the keys of two callers
/// never meet.
pub fn idempotency(
    headers: &HeaderMap,
    who: &Who,
    route: &Route,
    path: &str,
    body: &[u8],
) -> Result<Option<Idempotency>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(unusable_key("it came more than once"));
    }
    let key = key_text(value)?;
    let mut whole = Vec::new();
    for part in [route.method.as_str().as_bytes(), path.as_bytes(), body] {
        whole.extend_from_slice(part);
        whole.push(0);
    }
    let principal = who.key.as_ref().map_or("", |key| &key.principal);
    let scoped = format!("{principal}\n{} {}\n{key}", route.method, route.path);
    // Earlier builds kept keys by namespace alone. A decision is not looked for there: it may have been another person's,
    // and the rules recognise the same decision of the same person anyway.
    let former_key = (!route.is_decision()).then(|| key.to_owned());
    Ok(Some(Idempotency { former_key, ..Idempotency::new(scoped, Digest::of(&whole)) }))
}

fn key_text(value: &HeaderValue) -> Result<&str, Problem> {
    if value.is_empty() {
        return Err(unusable_key("it is empty"));
    }
    if value.len() > LONGEST_KEY {
        return Err(unusable_key(&format!("it has {} bytes", value.len())));
    }
    if let Some(at) = value.as_bytes().iter().position(|byte| !(0x20..0x7f).contains(byte)) {
        return Err(unusable_key(&format!("byte {} of it is not printable ASCII", at + 1)));
    }
    value.to_str().map_err(|error| unusable_key(&error.to_string()))
}

fn unusable_key(why: &str) -> Problem {
    let detail = format!("Send one Idempotency-Key of 1 to {LONGEST_KEY} printable ASCII characters; {why}.");
    Problem::new(Code::InvalidIdempotencyKey, detail)
}

/// Leases on their way to their worker. Those that do not get as far as its connection are given back at once: the handler
/// panicked, or the caller went away.
pub struct InTransit {
    pub engine: Engine,
    pub leases: Vec<LeaseRef>,
}

impl InTransit {
    pub fn add(&mut self, other: Option<InTransit>) {
        if let Some(mut other) = other {
            self.leases.append(&mut other.leases);
        }
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        self.engine.give_back(std::mem::take(&mut self.leases));
    }
}

/// A body that delivers leases: they are out of our hands as soon as the connection has taken the bytes.
struct Delivering {
    bytes: Option<Bytes>,
    leases: InTransit,
}

impl hyper::body::Body for Delivering {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        let bytes = self.bytes.take();
        self.leases.leases.clear();
        std::task::Poll::Ready(bytes.map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

pub type Body = BoxBody<Bytes, std::convert::Infallible>;

/// An answer.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Body,
}

impl Reply {
    /// A value as it writes itself: payloads in it are raw JSON, and pass through no other form.
    pub fn json(status: u16, value: &impl Serialize) -> Reply {
        match serde_json::to_vec(value) {
            Ok(bytes) => Reply::bytes(status, "application/json", bytes),
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written");
                Reply::problem(Problem::new(Code::Internal, "The answer cannot be written; it is logged."))
            }
        }
    }

    /// The same with tasks under leases in it.
    pub fn leasing(status: u16, value: &impl Serialize, leases: InTransit) -> Reply {
        use http_body_util::BodyExt as _;
        match serde_json::to_vec(value) {
            Ok(bytes) => {
                let body = Delivering { bytes: Some(bytes.into()), leases };
                Reply { body: body.boxed(), ..Reply::bytes(status, "application/json", Bytes::new()) }
            }
            Err(_) => Reply::json(status, value),
        }
    }

    /// A list under its name, with where the next page begins.
    pub fn list(name: &'static str, items: impl Serialize, next_cursor: Option<String>) -> Reply {
        Reply::json(200, &Listed { name, items, next_cursor })
    }

    pub fn bytes(status: u16, kind: &'static str, bytes: impl Into<Bytes>) -> Reply {
        use http_body_util::BodyExt as _;
        let body = http_body_util::Full::new(bytes.into()).boxed();
        Reply { status, headers: vec![(hyper::header::CONTENT_TYPE, HeaderValue::from_static(kind))], body }
    }

    pub fn empty(status: u16) -> Reply {
        use http_body_util::BodyExt as _;
        Reply { status, headers: Vec::new(), body: http_body_util::Empty::new().boxed() }
    }

    /// The one renderer of refusals.
    pub fn problem(problem: Problem) -> Reply {
        let status = problem.status;
        let retry = problem.retryable;
        let challenge = status == 401;
        let bytes = serde_json::to_vec(&problem).unwrap_or_default();
        let mut reply = Reply::bytes(status, "application/problem+json", bytes);
        if retry {
            reply = reply.header(hyper::header::RETRY_AFTER, "1");
        }
        if challenge {
            reply = reply.header(hyper::header::WWW_AUTHENTICATE, "Bearer realm=\"abide\"");
        }
        reply
    }

    pub fn header(mut self, name: HeaderName, value: impl AsRef<str>) -> Reply {
        if let Ok(value) = HeaderValue::from_str(value.as_ref()) {
            self.headers.push((name, value));
        }
        self
    }

    pub fn etag(self, seq: u64) -> Reply {
        self.header(hyper::header::ETAG, format!("\"{seq}\""))
    }

    pub fn location(self, href: String) -> Reply {
        self.header(hyper::header::LOCATION, href)
    }

    pub fn replayed(self, replayed: bool) -> Reply {
        if replayed { self.header(HeaderName::from_static("idempotency-replayed"), "true") } else { self }
    }
}

pub type Answered = Result<Reply, Problem>;
