//! The accept loop: every connection has deadlines and counts against caps; every request is admitted, answered and
//! logged in one place.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use abide_api::{Code, Problem};
use abide_engine::clock::Stopwatch;
use abide_engine::request::{Access, Request as Asked, What};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::call::{Answered, Body, Call, Reply, Who, epoch_in, idempotency};
use super::routes::{Allowed, Found, Route, Takes};
use super::{Api, link, locked, session};

/// Until when headers must be there; also how long a connection may rest between requests.
const HEADER_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(30);
/// A reader that takes nothing for so long is cut off.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// How long a stop waits for requests under way.
const DRAIN_TIME: Duration = Duration::from_secs(10);
const MOST_CONNECTIONS: usize = 8_192;
const MOST_PER_ADDRESS: usize = 2_048;
const HEADER_BYTES: usize = 64 << 10;
const URI_BYTES: usize = 16 << 10;
pub const BODY_BYTES: usize = 1 << 20;

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Server {
    pub async fn bind(address: &str) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Server { listener, address })
    }
}

/// Serves until `stop` resolves, then lets requests under way finish.
pub async fn serve(server: Server, api: Arc<Api>, stop: impl Future<Output = ()>) {
    let open = Arc::new(Open::default());
    let graceful = hyper_util::server::graceful::GracefulShutdown::new();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(2 * HEADER_BYTES);
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = server.listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, say: a moment later there may be room again.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = open.enter(from.ip()) else {
            tracing::warn!(%from, "too many connections");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let api = api.clone();
        let service = hyper::service::service_fn(move |request| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(answer(api, from.ip(), request).await) }
        });
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(Guarded::new(stream)), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%from, %error, "a connection ended early");
            }
            drop(place);
        });
    }
    // Whoever comes now is refused by the system, not left waiting.
    drop(server.listener);
    api.stop();
    if tokio::time::timeout(DRAIN_TIME, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

/// How many connections there are, in all and from each address.
#[derive(Debug, Default)]
struct Open(Mutex<HashMap<IpAddr, usize>>);

struct Place {
    open: Arc<Open>,
    address: IpAddr,
}

impl Open {
    fn enter(self: &Arc<Open>, address: IpAddr) -> Option<Place> {
        let mut counts = locked(&self.0);
        let all: usize = counts.values().sum();
        let own = counts.entry(address).or_default();
        if all >= MOST_CONNECTIONS || *own >= MOST_PER_ADDRESS {
            return None;
        }
        *own += 1;
        Some(Place { open: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = locked(&self.open.0);
        if let Some(own) = counts.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// A stream whose writes must not rest for ever.
struct Guarded {
    stream: TcpStream,
    resting: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Guarded {
    fn new(stream: TcpStream) -> Guarded {
        Guarded { stream, resting: None }
    }

    /// Whatever was written ends the rest; nothing written for too long ends the connection.
    fn judge<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.resting = None;
            return polled;
        }
        let resting = self.resting.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIME)));
        match resting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.judge(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// One request from its first byte to its answer.
async fn answer(api: Arc<Api>, from: IpAddr, request: Request<Incoming>) -> Response<Body> {
    let began = Stopwatch::start();
    let request_id = api.request_id();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // A panic in a handler is this caller's bad luck, not the server's end. A caller that hangs up ends its handler, so
    // that no task is leased to nobody; what the engine was asked for is carried all the same.
    let handled = std::panic::AssertUnwindSafe(handle(api.clone(), from, request)).catch_unwind().await;
    let (reply, route) = match handled {
        Ok((Ok(reply), route)) => (reply, route),
        Ok((Err(problem), route)) => (Reply::problem(named(problem, &path, &request_id)), route),
        Err(_) => {
            tracing::error!(request_id, %path, "a handler panicked");
            let problem = Problem::new(Code::Internal, "Something broke in here; it is logged.");
            (Reply::problem(named(problem, &path, &request_id)), "")
        }
    };
    let took = began.elapsed();
    api.metrics.request(method.as_str(), route, reply.status, took);
    tracing::debug!(%method, path, status = reply.status, request_id, ?took, "request");
    finish(reply, &request_id)
}

fn named(mut problem: Problem, path: &str, request_id: &str) -> Problem {
    problem.instance = path.into();
    problem.request_id = request_id.into();
    problem
}

fn finish(reply: Reply, request_id: &str) -> Response<Body> {
    let mut response = Response::new(reply.body);
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    for (name, value) in reply.headers {
        headers.append(name, value);
    }
    if let Ok(value) = HeaderValue::from_str(request_id) {
        headers.insert(HeaderName::from_static("request-id"), value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Pages of others may not even embed what they could not read.
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if matches!(reply.status, 400 | 413 | 408) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Finds the route, admits the caller, reads the body, and lets the handler answer.
async fn handle(api: Arc<Api>, from: IpAddr, request: Request<Incoming>) -> (Answered, &'static str) {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.uri.path_and_query().is_some_and(|uri| uri.as_str().len() > URI_BYTES) {
        return (Err(Problem::new(Code::UriTooLong, format!("An address has at most {URI_BYTES} bytes."))), "");
    }
    let header_bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if header_bytes > HEADER_BYTES {
        return (Err(Problem::new(Code::HeadersTooLarge, format!("Headers have at most {HEADER_BYTES} bytes."))), "");
    }
    if let Err(problem) = check_sender(&api, &parts.method, &parts.headers, &parts.uri) {
        return (Err(problem), "");
    }
    let query = query_of(parts.uri.query().unwrap_or_default());
    // A key in a URL must not work anywhere, or it would be sent there.
    if query.iter().any(|(name, _)| matches!(name.as_str(), "api_key" | "apikey" | "key" | "access_token" | "token")) {
        let detail = "A key came in the query of the URL. Send it as `Authorization: Bearer KEY`, and replace it: URLs are logged.";
        return (Err(Problem::new(Code::CredentialsInUrl, detail)), "");
    }
    let shared = api.clone();
    let (route, params) = match shared.routes.find(&parts.method, &path) {
        Found::Route(route, params) => (route, params),
        Found::Others(methods) => {
            let allow = methods.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", ");
            let detail = format!("{} is not taken here; {allow} is.", parts.method);
            let problem = Problem::new(Code::MethodNotAllowed, detail).with("allow", allow.clone());
            return (Ok(Reply::problem(problem).header(header::ALLOW, allow)), "");
        }
        Found::Nothing => {
            let problem = Problem::new(Code::NotFound, "There is nothing at this path.");
            // Somebody who mistyped an address in a browser reads a page, not JSON.
            return (if wants_page(&parts.headers) { Ok(link::refusal(&problem)) } else { Err(problem) }, "");
        }
    };
    let prepared = prepare(&api, from, route, &parts.method, &path, &parts.headers, body).await;
    let (who, body, idempotency) = match prepared {
        Ok(prepared) => prepared,
        Err(Unprepared { problem, refused: None }) => return (Err(problem), route.path),
        Err(Unprepared { problem, refused: Some((who, start)) }) => {
            let refused = RefusedResult { who, params, headers: parts.headers, start };
            return (Err(refused.end_attempt(&api, problem).await), route.path);
        }
    };
    let refused = route.takes_results().then(|| RefusedResult {
        who: who.clone(),
        params: params.clone(),
        headers: parts.headers.clone(),
        start: body.clone(),
    });
    let under_way = match UnderWay::enter(&api, &who, idempotency.as_ref().map(|one| one.key.as_str())) {
        Ok(under_way) => under_way,
        Err(problem) => return (Err(problem), route.path),
    };
    let engine = api.engine.in_namespace(who.namespace.clone());
    let call = Call { api, from, engine, who, params, query, headers: parts.headers, body, idempotency };
    let answered = match (route.call(call).await, refused) {
        (Err(problem), Some(refused)) => Err(refused.end_attempt(&shared, problem).await),
        (answered, _) => answered,
    };
    drop(under_way);
    (answered, route.path)
}

type Prepared = (Who, Bytes, Option<abide_engine::request::Idempotency>);

/// Why a request does not get to its handler; of a worker's result also whose it is and how it begins.
struct Unprepared {
    problem: Problem,
    refused: Option<(Who, Bytes)>,
}

impl From<Problem> for Unprepared {
    fn from(problem: Problem) -> Unprepared {
        Unprepared { problem, refused: None }
    }
}

/// A worker's result that was refused. Where its lease is proven, its attempt is over.
struct RefusedResult {
    who: Who,
    params: Vec<(String, String)>,
    headers: HeaderMap,
    /// The body, or as much of it as was read.
    start: Bytes,
}

impl RefusedResult {
    async fn end_attempt(self, api: &Arc<Api>, problem: Problem) -> Problem {
        let RefusedResult { who, params, headers, start } = self;
        let task_id = params.iter().find(|(name, _)| name == "task_id").map_or("", |(_, value)| value);
        let (told, written) = (epoch_of(&headers), epoch_in(&start));
        let epoch = match (told, written) {
            // Whoever says two things has proven neither.
            (Some(told), Some(written)) if told != written => return problem,
            (told, written) => told.or(written),
        };
        let Some(epoch) = epoch else { return problem };
        let engine = api.engine.in_namespace(who.namespace.clone());
        let caller = abide_api::engine::Caller { name: who.key.as_ref().map(|key| key.principal.as_str()) };
        abide_api::engine::end_attempt(&engine, caller, task_id, epoch, problem).await
    }
}

/// The epoch that a worker sends beside its report, so that it is known also when the report cannot be read.
fn epoch_of(headers: &HeaderMap) -> Option<u64> {
    headers.get("abide-epoch")?.to_str().ok()?.trim().parse().ok()
}

async fn prepare(
    api: &Arc<Api>,
    from: IpAddr,
    route: &Route,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Prepared, Unprepared> {
    let (who, by) = admit(api, route, headers)?;
    // A worker that reports is never kept waiting: its lease would expire.
    // Files of the UI come from memory, many at once.
    if !route.path.starts_with("/v1/tasks/") && !route.path.starts_with("/ui/") {
        let caller =
            who.key.as_ref().map_or_else(|| from.to_string(), |key| format!("{}/{}", who.namespace, key.principal));
        api.rates.take(&caller, api.engine.clock().now())?;
    }
    check_accept(route, headers)?;
    let takes_body = !matches!(method, &Method::GET | &Method::HEAD | &Method::DELETE);
    if !takes_body {
        if by == By::Session {
            session::check_own_page(method, headers, true)?;
        }
        return Ok((who, Bytes::new(), None));
    }
    let body = match read_body(route, headers, body).await {
        Ok(body) => body,
        Err((problem, start)) => {
            return Err(Unprepared { problem, refused: route.takes_results().then_some((who, start)) });
        }
    };
    if by == By::Session {
        session::check_own_page(method, headers, body.is_empty() || check_type(route, headers, &body).is_ok())?;
    }
    check_type(route, headers, &body)?;
    let idempotency = match *method {
        Method::POST => idempotency(headers, &who, route, path, &body)?,
        _ => None,
    };
    Ok((who, body, idempotency))
}

/// Pages of other sites, and names that are not ours, get nothing: a browser would lend them our address.
fn check_sender(api: &Api, method: &Method, headers: &HeaderMap, uri: &hyper::Uri) -> Result<(), Problem> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).or_else(|| uri.host()).unwrap_or_default();
    if !api.settings.hosts.is_empty() && !api.settings.hosts.contains(host_name(host)) {
        let detail = format!("This server is not {:?}. It answers to: {}.", host, join(&api.settings.hosts));
        return Err(Problem::new(Code::Misdirected, detail));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let site = text(HeaderName::from_static("sec-fetch-site"));
        // A form on a page with `no-referrer` has no origin to tell, and the browser says in its own words whose it is.
        let own = origin == "null" && site == Some("same-origin");
        let own = own || origin.split_once("://").is_some_and(|(_, rest)| rest == host);
        if !own && !api.settings.origins.contains(origin) {
            return Err(Problem::new(Code::CrossSite, format!("Pages of {origin} may not call this server.")));
        }
    } else if text(HeaderName::from_static("sec-fetch-site")).is_some_and(|site| site == "cross-site")
        && method != Method::GET
    {
        return Err(Problem::new(Code::CrossSite, "A page of another site may not call this server."));
    }
    Ok(())
}

/// The host without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

fn join(names: &std::collections::BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// What let the caller in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Nothing,
    Key,
    Session,
}

fn admit(api: &Arc<Api>, route: &Route, headers: &HeaderMap) -> Result<(Who, By), Problem> {
    let Allowed::Roles(roles) = route.allowed else { return Ok((Who::anybody(), By::Nothing)) };
    let (who, by) = know(api, headers)?;
    if !roles.contains(&who.role) {
        let roles = roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(", ");
        let detail = format!("A key with role {} may not do this; these may: {roles}.", who.role.as_str());
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok((who, by))
}

/// Who sends such headers.
fn know(api: &Arc<Api>, headers: &HeaderMap) -> Result<(Who, By), Problem> {
    match headers.get(header::AUTHORIZATION) {
        Some(given) => {
            let text = given.to_str().unwrap_or_default();
            let key = text.strip_prefix("Bearer ").or_else(|| text.strip_prefix("bearer ")).unwrap_or_default();
            Ok((admit_key(api, key)?, By::Key))
        }
        None if !api.keys.is_used() => Ok((Who::anybody(), By::Nothing)),
        None => {
            let admitted = session::token_of(headers)
                .and_then(|token| api.sessions.admit(&api.keys, token, api.engine.clock().now()));
            let missing =
                || Problem::new(Code::Unauthenticated, "Send a key as `Authorization: Bearer KEY`, or log in.");
            Ok((admitted.ok_or_else(missing)?, By::Session))
        }
    }
}

/// Whether whoever sent such headers is still let in: a stream outlives neither its session nor its key.
pub fn is_still_known(api: &Arc<Api>, headers: &HeaderMap) -> bool {
    know(api, headers).is_ok()
}

/// Whose key this is; that it was used is remembered.
pub fn admit_key(api: &Arc<Api>, key: &str) -> Result<Who, Problem> {
    let (who, used) = api.keys.admit(key.trim(), api.engine.clock().now())?;
    if let Some(key_id) = used {
        let (engine, namespace) = (api.engine.clone(), who.namespace.clone());
        // That it was used is worth knowing, not worth waiting for.
        tokio::spawn(async move {
            let what = What::Access(Box::new(Access::KeyUsed(key_id)));
            let _ = engine.ask(Asked { namespace, idempotency: None, what }).await;
        });
    }
    Ok(who)
}

/// Whether a person in front of a browser asks.
pub fn wants_page(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

fn check_accept(route: &Route, headers: &HeaderMap) -> Result<(), Problem> {
    let gives = match route.gives.first().map(|(_, name)| *name) {
        Some("stream") => "text/event-stream",
        Some("metrics") => "text/plain",
        Some("page") => "text/html",
        // Files are of many kinds, and whoever names one knows which.
        Some("asset") => return Ok(()),
        _ => "application/json",
    };
    let Some(accept) = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()) else { return Ok(()) };
    let family = gives.split('/').next().unwrap_or_default();
    let mut wanted = accept.split(',').map(|one| one.split(';').next().unwrap_or_default().trim());
    let fits = |one: &str| {
        one.is_empty()
            || one == "*/*"
            || one == gives
            || one == "application/problem+json"
            || one.strip_suffix("/*") == Some(family)
    };
    if wanted.any(fits) {
        return Ok(());
    }
    Err(Problem::new(Code::NotAcceptable, format!("This path answers with {gives}; {accept:?} does not take it.")))
}

/// The body, or why it is not taken and what was read of it. Never more than the limit is kept.
async fn read_body(route: &Route, headers: &HeaderMap, body: Incoming) -> Result<Bytes, (Problem, Bytes)> {
    let unread = |problem| (problem, Bytes::new());
    if headers.contains_key(header::CONTENT_ENCODING) {
        let problem = Problem::new(Code::UnsupportedContentEncoding, "Send the body as it is, not compressed.");
        return Err(unread(problem));
    }
    let (lengths, coded) =
        (headers.get_all(header::CONTENT_LENGTH).iter().count(), headers.contains_key(header::TRANSFER_ENCODING));
    if lengths > 1 || (lengths == 1 && coded) {
        return Err(unread(Problem::new(Code::BadRequest, "The length of the body is said twice.")));
    }
    let limit = match route.takes {
        Takes::Document => abide_core::definition::LARGEST_DOCUMENT_BYTES,
        Takes::Nothing | Takes::Json(_) => BODY_BYTES,
    };
    let too_large = || {
        let detail = format!("The body has more than {limit} bytes. Store it elsewhere and pass a reference.");
        Problem::new(Code::PayloadTooLarge, detail).with("limit", limit)
    };
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let is_known_too_large = declared.is_some_and(|length| length > limit as u64);
    // Of a result that is too large only its epoch is wanted, and the header may have said it.
    if is_known_too_large && !(route.takes_results() && epoch_of(headers).is_none()) {
        return Err(unread(too_large()));
    }
    let mut read = Vec::new();
    match tokio::time::timeout(BODY_TIME, read_up_to(limit, body, &mut read)).await {
        Ok(Ok(true)) => Ok(read.into()),
        Ok(Ok(false)) => Err((too_large(), read.into())),
        Ok(Err(error)) => Err(unread(Problem::new(Code::BadRequest, format!("The body ended early: {error}.")))),
        Err(_) if is_known_too_large => Err((too_large(), read.into())),
        Err(_) => Err(unread(Problem::new(Code::BadRequest, "The body took too long to arrive."))),
    }
}

/// Reads a body; false: there is more than the limit, and only so much was read.
async fn read_up_to(limit: usize, mut body: Incoming, read: &mut Vec<u8>) -> Result<bool, hyper::Error> {
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame?.into_data() else { continue };
        if read.len() + data.len() > limit {
            data.truncate(limit - read.len());
            read.extend_from_slice(&data);
            return Ok(false);
        }
        read.extend_from_slice(&data);
    }
    Ok(true)
}

fn check_type(route: &Route, headers: &HeaderMap, body: &Bytes) -> Result<(), Problem> {
    if body.is_empty() {
        return Ok(());
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known: &[&str] = match route.takes {
        Takes::Document => &["application/yaml", "application/x-yaml", "text/yaml", "application/json"],
        Takes::Json(_) => &["application/json"],
        Takes::Nothing if route.path == "/csp-reports" => &["application/csp-report"],
        Takes::Nothing if route.path.starts_with("/links/") => &["application/x-www-form-urlencoded"],
        Takes::Nothing => &["application/json"],
    };
    if known.contains(&kind.as_str()) {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        format!("Send Content-Type: {}; it was {kind:?}.", known.join(" or ")),
    ))
}

fn query_of(text: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(text.as_bytes()).map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// The first request of an idempotency key, while it is under way.
struct UnderWay {
    api: Arc<Api>,
    key: Option<(String, String)>,
}

impl UnderWay {
    fn enter(api: &Arc<Api>, who: &Who, key: Option<&str>) -> Result<UnderWay, Problem> {
        let key = key.map(|key| (who.namespace.to_string(), key.to_owned()));
        if let Some(key) = &key
            && !locked(&api.under_way).insert(key.clone())
        {
            let detail = "A request with this Idempotency-Key is being worked on. Ask again in a moment.";
            return Err(Problem::new(Code::IdempotencyInProgress, detail));
        }
        Ok(UnderWay { api: api.clone(), key })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            locked(&self.api.under_way).remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use abide_engine::Engine;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::Settings;
    use super::super::routes::{self, Routes};
    use super::*;

    async fn breaks(_: Call) -> Answered {
        tokio::task::yield_now().await;
        panic!("in a handler")
    }

    async fn claims_and_breaks(call: Call) -> Answered {
        let asked = serde_json::from_str(r#"{"worker":"w","queues":["default"],"wait_ms":0}"#).expect("a claim");
        let tasks = abide_api::engine::claim(&call.engine, call.worker(), asked).await?;
        let leases = tasks.iter().map(abide_engine::request::LeasedTask::lease).collect::<Vec<_>>();
        assert_eq!(leases.len(), 1, "the task is there each time");
        let _leases = super::super::call::InTransit { engine: call.engine.clone(), leases };
        panic!("with a lease in hand")
    }

    /// A server with all routes, and two whose handlers panic.
    async fn server(engine: Engine) -> SocketAddr {
        let mut api = Api::new(engine, Settings::default()).await.expect("an api");
        let mut table = routes::table();
        table.push(routes::get("/breaks", Allowed::Anybody, &[], "Breaks.", breaks));
        table.push(routes::get("/claims-and-breaks", Allowed::Anybody, &[], "Breaks.", claims_and_breaks));
        Arc::get_mut(&mut api).expect("nobody else has it").routes = Routes::of(table);
        let server = Server::bind("127.0.0.1:0").await.expect("a port");
        let address = server.address;
        tokio::spawn(serve(server, api, std::future::pending()));
        address
    }

    /// Asks on a connection that stays open; returns the status and the body.
    async fn ask(stream: &mut TcpStream, path: &str) -> (u16, serde_json::Value) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it listens");
        let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut bytes).await.expect("it answers");
            assert!(read > 0, "the connection was closed");
            heard.extend_from_slice(&bytes[..read]);
            let text = String::from_utf8_lossy(&heard);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if let Ok(body) = serde_json::from_str(body) {
                return (head[9..12].parse().expect("a status"), body);
            }
        }
    }

    #[tokio::test]
    async fn a_handler_that_panics_with_leases_gives_them_back() {
        let directory = std::env::temp_dir().join(format!("abide-gives-back-{}", std::process::id()));
        let engine = Engine::open(&directory).expect("an engine");
        engine.register("workflow: w\nsteps:\n  - { id: a, task: work }\n").await.expect("a document");
        let run = engine.start("w", serde_json::json!({})).await.expect("a run").run_id;
        let mut stream = TcpStream::connect(server(engine.clone()).await).await.expect("a connection");
        for _ in 0..5 {
            assert_eq!(ask(&mut stream, "/claims-and-breaks").await.0, 500);
        }
        let asked = abide_api::tasks::ClaimTasks {
            worker: "w".into(),
            queues: vec!["default".into()],
            ..abide_api::tasks::ClaimTasks::default()
        };
        let tasks =
            abide_api::engine::claim(&engine, abide_api::engine::Caller::default(), asked).await.expect("tasks");
        assert_eq!((&tasks[0].run_id, tasks[0].attempt, tasks[0].epoch.0), (&run, 1, 6));
        engine.shutdown().await;
        let _ = std::fs::remove_dir_all(directory);
    }

    #[tokio::test]
    async fn f14_a_panic_in_a_handler_is_answered_as_internal_and_the_server_lives() {
        let directory = std::env::temp_dir().join(format!("abide-panics-{}", std::process::id()));
        let engine = Engine::open(&directory).expect("an engine");
        let mut stream = TcpStream::connect(server(engine.clone()).await).await.expect("a connection");
        for _ in 0..2 {
            let (status, problem) = ask(&mut stream, "/breaks").await;
            assert_eq!((status, &problem["code"]), (500, &"internal".into()));
            assert!(!problem.to_string().contains("in a handler"), "no internals are told: {problem}");
            assert_eq!(ask(&mut stream, "/readyz").await.0, 200, "on the same connection");
        }
        engine.shutdown().await;
        let _ = std::fs::remove_dir_all(directory);
    }
}
