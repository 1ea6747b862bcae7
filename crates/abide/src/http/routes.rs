//! The table of routes. What is not in it is not found; a route without roles does not compile; the reference is made
//! from it.

use std::future::Future;
use std::pin::Pin;

use abide_api::keys::Role::{self, Admin, Approver, Operator, Viewer, Worker};
use abide_api::{keys, runs as run, tasks as task};
use hyper::Method;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::call::{Answered, Call, parse};
use super::{access, approvals, connections, document, link, page, runs, session, stream, system, tasks, workflows};

type Handling = Pin<Box<dyn Future<Output = Answered> + Send>>;
type Handler = Box<dyn Fn(Call) -> Handling + Send + Sync>;
type SchemaOf = fn(&mut SchemaGenerator) -> schemars::Schema;

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Also without a key: exactly these routes, never a pattern of names.
    Anybody,
    Roles(&'static [Role]),
}

const READ: Allowed = Allowed::Roles(&[Viewer, Operator, Worker, Approver, Admin]);
const OPERATE: Allowed = Allowed::Roles(&[Operator, Admin]);
const WORK: Allowed = Allowed::Roles(&[Worker, Admin]);
const DECIDE: Allowed = Allowed::Roles(&[Approver, Operator, Admin]);
/// The bytes of inputs and outputs. A worker is let in only while it holds a lease of the run.
const PAYLOADS: Allowed = Allowed::Roles(&[Operator, Worker, Admin]);
const MANAGE: Allowed = Allowed::Roles(&[Admin]);

/// What a route takes as its body.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    Nothing,
    Json(SchemaOf),
    Document,
}

pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub allowed: Allowed,
    pub takes: Takes,
    pub query: &'static [&'static str],
    /// Statuses of success, and the name of what comes with them.
    pub gives: &'static [(u16, &'static str)],
    pub about: &'static str,
    handler: Handler,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Route {
    pub fn call(&self, call: Call) -> Handling {
        (self.handler)(call)
    }

    /// True for routes on which a person decides an approval.
    pub fn is_decision(&self) -> bool {
        self.allowed == DECIDE
    }

    /// True for routes on which a worker reports the result of a task, or of a step of a body.
    pub fn takes_results(&self) -> bool {
        ["complete", "fail", "steps"].iter().any(|what| self.path.strip_prefix("/v1/tasks/{task_id}/") == Some(what))
    }

    fn query(mut self, names: &'static [&'static str]) -> Route {
        self.query = names;
        self
    }
}

type Gives = &'static [(u16, &'static str)];

fn without_body<F, R>(
    method: Method,
    path: &'static str,
    allowed: Allowed,
    gives: Gives,
    about: &'static str,
    handler: F,
) -> Route
where
    F: Fn(Call) -> R + Send + Sync + 'static,
    R: Future<Output = Answered> + Send + 'static,
{
    let handler: Handler = Box::new(move |call| Box::pin(handler(call)));
    Route { method, path, allowed, takes: Takes::Nothing, query: &[], gives, about, handler }
}

pub(super) fn get<F, R>(path: &'static str, allowed: Allowed, gives: Gives, about: &'static str, handler: F) -> Route
where
    F: Fn(Call) -> R + Send + Sync + 'static,
    R: Future<Output = Answered> + Send + 'static,
{
    without_body(Method::GET, path, allowed, gives, about, handler)
}

fn post<B, F, R>(path: &'static str, allowed: Allowed, gives: Gives, about: &'static str, handler: F) -> Route
where
    B: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(Call, B) -> R + Send + Sync + Copy + 'static,
    R: Future<Output = Answered> + Send + 'static,
{
    let handler: Handler = Box::new(move |call| {
        Box::pin(async move {
            let body = parse::<B>(&call.body)?;
            handler(call, body).await
        })
    });
    let takes = Takes::Json(|generator| generator.subschema_for::<B>());
    Route { method: Method::POST, path, allowed, takes, query: &[], gives, about, handler }
}

const LIST: &[&str] = super::filter::NAMES;

/// All of them.
#[rustfmt::skip] // A table reads by its rows.
pub fn table() -> Vec<Route> {
    vec![
        // Workflows.
        Route {
            takes: Takes::Document,
            ..without_body(Method::PUT, "/v1/workflows/{workflow_id}", OPERATE, &[(200, "applied"), (201, "applied")],
                "Keeps a workflow document as a new version, unless it says the same as the newest.", workflows::apply)
        },
        get("/v1/workflows", READ, &[(200, "workflows")], "The newest version of every workflow.", workflows::list),
        get("/v1/workflows/{workflow_id}", READ, &[(200, "workflow")], "A workflow and its newest document.", workflows::newest),
        get("/v1/workflows/{workflow_id}/versions", READ, &[(200, "versions")], "All versions of a workflow, the newest first.", workflows::versions),
        get("/v1/workflows/{workflow_id}/versions/{version}", READ, &[(200, "workflow")], "One version of a workflow.", workflows::version),
        get("/v1/workflows/{workflow_id}/graph", READ, &[(200, "graph")], "The steps of a workflow as nodes and edges, and as a diagram.", workflows::graph).query(&["version"]),
        // Runs.
        post::<run::StartRun, _, _>("/v1/runs", OPERATE, &[(201, "run"), (200, "run")], "Starts a run.", runs::start),
        get("/v1/runs", READ, &[(200, "runs")], "Runs, newest first.", runs::list).query(LIST),
        get("/v1/runs/counts", READ, &[(200, "counts")], "How many runs there are, by state, workflow or root cause.", runs::counts).query(&["by", "workflow"]),
        post::<run::Bulk, _, _>("/v1/runs/bulk", OPERATE, &[(200, "bulk_done")], "Does the same to every run that a filter finds.", runs::bulk),
        get("/v1/runs/{run_id}", READ, &[(200, "run"), (304, "")], "The record of a run, now or at a past instant.", runs::show).query(&["at"]),
        get("/v1/runs/{run_id}/status", READ, &[(200, "status")], "Only the lifecycle, nothing inferred.", runs::status),
        get("/v1/runs/{run_id}/events", READ, &[(200, "events")], "The log of a run.", runs::events).query(&["after", "limit"]),
        get("/v1/runs/{run_id}/steps", READ, &[(200, "steps")], "The steps of a run. Outputs come with the right to see payloads.", runs::steps).query(&["limit", "cursor"]),
        get("/v1/runs/{run_id}/steps/{step_id}", READ, &[(200, "step")], "One step, with its input and output where the caller may see them.", runs::step),
        get("/v1/runs/{run_id}/steps/{step_id}/output", PAYLOADS, &[(200, "any")], "The output of a step, byte for byte.", runs::step_output),
        get("/v1/runs/{run_id}/input", PAYLOADS, &[(200, "any")], "The input, byte for byte.", runs::input),
        get("/v1/runs/{run_id}/output", PAYLOADS, &[(200, "any")], "The output, byte for byte.", runs::output),
        get("/v1/runs/{run_id}/explain", READ, &[(200, "explanation")], "What it is doing, why, since when, what comes next and what can be done.", runs::explain).query(&["at"]),
        get("/v1/runs/{run_id}/handoff", READ, &[(200, "handoff")], "Everything an operator needs to decide.", runs::handoff),
        get("/v1/runs/{run_id}/bundle", OPERATE, &[(200, "any")], "One file with everything about a run, payloads redacted.", runs::bundle),
        get("/v1/runs/{run_id}/graph", READ, &[(200, "graph")], "The steps of a run as nodes and edges with their states, now or at a past instant.", runs::graph).query(&["at"]),
        get("/v1/runs/{run_id}/timeline", READ, &[(200, "timeline")], "When each step was in line, executed and waiting, and for what.", runs::timeline),
        get("/v1/runs/{run_id}/stream", READ, &[(200, "stream")], "The record on every change, as server-sent events.", stream::of_run),
        get("/v1/stream", READ, &[(200, "stream")], "The records of all runs that a filter finds, on every change.", stream::of_filter).query(LIST),
        post::<run::CancelRun, _, _>("/v1/runs/{run_id}/cancel", OPERATE, &[(200, "run"), (202, "run")], "Cancels a run.", runs::cancel),
        post::<run::PauseRun, _, _>("/v1/runs/{run_id}/pause", OPERATE, &[(200, "run")], "Issues nothing new until it is resumed.", runs::pause),
        post::<run::ResumeRun, _, _>("/v1/runs/{run_id}/resume", OPERATE, &[(200, "run")], "Goes on, or takes one step.", runs::resume),
        post::<run::SendSignal, _, _>("/v1/runs/{run_id}/signals/{name}", OPERATE, &[(200, "run")], "Something that the run may wait for has happened.", runs::signal),
        post::<run::PinRun, _, _>("/v1/runs/{run_id}/pin", OPERATE, &[(200, "run")], "Keeps a run from being archived.", runs::pin),
        post::<run::RetryRun, _, _>("/v1/runs/{run_id}/retry", OPERATE, &[(200, "run"), (201, "run")], "Tries again: now, or as a new run from the failed step.", runs::retry),
        post::<run::RerunRun, _, _>("/v1/runs/{run_id}/rerun", OPERATE, &[(201, "run"), (200, "rerun_plan")], "A new run from a step of one that has ended.", runs::rerun),
        post::<run::ResolveStep, _, _>("/v1/runs/{run_id}/resolve", OPERATE, &[(200, "run")], "An operator decides about a step.", runs::resolve),
        // Decisions.
        post::<run::Decide, _, _>("/v1/runs/{run_id}/approve", DECIDE, &[(200, "run")], "A person says yes.", approvals::approve),
        post::<run::Decide, _, _>("/v1/runs/{run_id}/reject", DECIDE, &[(200, "run")], "A person says no.", approvals::reject),
        post::<run::MakeLink, _, _>("/v1/runs/{run_id}/approvals/{step_id}/links", OPERATE, &[(201, "link")], "A one-time page on which somebody decides.", link::make),
        get("/v1/runs/{run_id}/approvals/{step_id}", READ, &[(200, "approval")], "One decision: whether it still waits, and what was decided.", approvals::one),
        get("/v1/approvals", READ, &[(200, "approvals")], "Decisions that wait for people, the most urgent first.", approvals::inbox).query(&["limit"]),
        get("/links/{token}", Allowed::Anybody, &[(200, "page")], "The page of a one-time link. Looking changes nothing.", link::show),
        without_body(Method::POST, "/links/{token}", Allowed::Anybody, &[(200, "page")], "Decides, once.", link::decide),
        // Connections.
        post::<run::ReconnectRun, _, _>("/v1/runs/{run_id}/reconnect", OPERATE, &[(200, "run")], "Lets one run go on with its connection.", connections::of_run),
        get("/v1/connections", READ, &[(200, "connections")], "Every connection that is known or waited for.", connections::list),
        post::<run::Nothing, _, _>("/v1/connections/{tool}/{account}/reconnected", OPERATE, &[(200, "released")], "A connection works again: everything that waits for it goes on.", connections::reconnected),
        post::<run::Nothing, _, _>("/v1/connections/{tool}/{account}/broken", OPERATE, &[(200, "released")], "A connection is known to be broken: steps wait without calling.", connections::broken),
        // Workers.
        post::<task::ClaimTasks, _, _>("/v1/tasks/claim", WORK, &[(200, "claimed"), (204, "")], "Tasks to execute, under leases.", tasks::claim),
        post::<task::Batch, _, _>("/v1/tasks/batch", WORK, &[(200, "batch_done")], "Many reports in one call.", tasks::batch),
        post::<task::Heartbeat, _, _>("/v1/tasks/{task_id}/heartbeat", WORK, &[(200, "beat")], "Extends a lease.", tasks::heartbeat),
        post::<task::CompleteTask, _, _>("/v1/tasks/{task_id}/complete", WORK, &[(200, "task_done")], "The task is done.", tasks::complete),
        post::<task::FailTask, _, _>("/v1/tasks/{task_id}/fail", WORK, &[(200, "task_done")], "The task failed.", tasks::fail),
        post::<task::BlockTask, _, _>("/v1/tasks/{task_id}/block", WORK, &[(200, "task_done")], "The task waits for something; the lease is given back.", tasks::block),
        post::<task::MakeCallback, _, _>("/v1/tasks/{task_id}/callbacks", WORK, &[(201, "callback_made")], "An address to which a tool sends its answer, once.", tasks::callback),
        post::<task::TellEffect, _, _>("/v1/tasks/{task_id}/effects", WORK, &[(200, "effect_key")], "An effect is about to happen, or has happened.", tasks::effect),
        post::<task::Stopped, _, _>("/v1/tasks/{task_id}/canceled", WORK, &[(200, "task_done")], "The worker has stopped as it was told.", tasks::canceled),
        post::<task::TellSteps, _, _>("/v1/tasks/{task_id}/steps", WORK, &[(200, "body_state")], "A coded body reports steps, begins steps, waits.", tasks::steps),
        without_body(Method::POST, "/v1/callbacks/{token}", Allowed::Anybody, &[(200, "delivered")], "A tool's answer to a callback. The body is the answer.", tasks::delivered),
        // Keys.
        post::<keys::CreateKey, _, _>("/v1/keys", MANAGE, &[(201, "new_key")], "Makes a key. It is shown this once.", access::create),
        get("/v1/keys", MANAGE, &[(200, "keys")], "All keys, never the keys themselves.", access::list),
        without_body(Method::DELETE, "/v1/keys/{key_id}", MANAGE, &[(204, "")], "Takes a key away.", access::revoke),
        // Sessions of browsers.
        get("/v1/session", READ, &[(200, "session")], "Who the caller is.", session::show),
        post::<keys::LogIn, _, _>("/v1/session", Allowed::Anybody, &[(200, "session")], "Takes a key and sets a cookie that stands for it.", session::log_in),
        without_body(Method::DELETE, "/v1/session", Allowed::Anybody, &[(204, "")], "Ends the session.", session::log_out),
        // The UI. Its page holds nothing of anybody: what it shows it asks for, with the right of who looks.
        get("/", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of runs; its query is that of `GET /v1/runs`.", page::screen),
        get("/runs/{run_id}", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of a run.", page::screen),
        get("/inbox", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of decisions that wait for people.", page::screen),
        get("/workflows", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of workflows.", page::screen),
        get("/workflows/{workflow_id}", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of a workflow.", page::screen),
        get("/workers", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of workers and queues.", page::screen),
        get("/insights", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of times and rates.", page::screen),
        get("/contract", Allowed::Anybody, &[(200, "page"), (304, "")], "The screen of states and transitions.", page::screen),
        get("/ui/{*path}", Allowed::Anybody, &[(200, "asset"), (304, "")], "A file of the UI.", page::asset),
        without_body(Method::POST, "/csp-reports", Allowed::Anybody, &[(204, "")], "A browser held something back on a page of the UI.", page::report),
        // The system.
        get("/v1/queues", READ, &[(200, "queues")], "Queues with their depth and listeners.", system::queues),
        get("/v1/workers", READ, &[(200, "workers")], "Who has asked for work lately.", system::workers),
        get("/v1/insights", READ, &[(200, "numbers")], "Time in states, retries, stalls, warnings: the numbers people need, of all workflows, one or each, and by tool.", system::insights).query(&["workflow", "by"]),
        get("/v1/contract", READ, &[(200, "contract")], "The states, the transitions and the limits.", system::contract),
        get("/problems/{code}", Allowed::Anybody, &[(200, "page")], "What a refusal means and what helps.", system::problem),
        get("/healthz", Allowed::Anybody, &[(200, "health")], "It lives.", system::alive),
        get("/readyz", Allowed::Anybody, &[(200, "health")], "It is migrated and can commit.", system::ready),
        get("/metrics", READ, &[(200, "metrics")], "Numbers for Prometheus.", system::metrics),
        get("/openapi.json", READ, &[(200, "any")], "This reference, as OpenAPI 3.1.", document::show),
    ]
}

/// The table, by path.
pub struct Routes {
    routes: Vec<Route>,
    by_path: matchit::Router<Vec<usize>>,
}

pub enum Found<'a> {
    Route(&'a Route, Vec<(String, String)>),
    /// The path exists, with other methods.
    Others(Vec<&'a Method>),
    Nothing,
}

impl Routes {
    pub fn of(routes: Vec<Route>) -> Routes {
        let mut paths: Vec<(&'static str, Vec<usize>)> = Vec::new();
        for (n, route) in routes.iter().enumerate() {
            match paths.iter_mut().find(|(path, _)| *path == route.path) {
                Some((_, known)) => known.push(n),
                None => paths.push((route.path, vec![n])),
            }
        }
        let mut by_path = matchit::Router::new();
        for (path, known) in paths {
            by_path.insert(path, known).expect("the table has no two routes that mean the same");
        }
        Routes { routes, by_path }
    }

    pub fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let Ok(matched) = self.by_path.at(path) else { return Found::Nothing };
        let known = matched.value.iter().map(|n| &self.routes[*n]);
        // HEAD is GET without its body, which the connection leaves out.
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        match known.clone().find(|route| route.method == wanted) {
            Some(route) => {
                let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
                Found::Route(
                    route,
                    matched.params.iter().map(|(name, value)| (name.to_owned(), decode(value))).collect(),
                )
            }
            None => Found::Others(known.map(|route| &route.method).collect()),
        }
    }
}
