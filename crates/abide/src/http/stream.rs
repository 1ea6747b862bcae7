//! Server-sent events: the record of a run on every change, and of all runs that a filter finds. A reader that is too slow
//! is told so with the event `gap` and cut off; it takes up again with the id of the last event it has.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use abide_api::tasks::ProgressTold;
use abide_api::{Code, Problem};
use abide_core::ids::{Namespace, RunId, TaskId};
use abide_core::time::{Span, Timestamp};
use abide_engine::feed::{Feed, Followed};
use abide_engine::{Engine, Filter};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};

use super::Api;
use super::call::{Answered, Call, Reply};
use super::filter::filter;

const MOST_STREAMS: usize = 2_048;
/// A line that keeps proxies from closing a quiet stream, and notices readers that are gone.
const QUIET: Duration = Duration::from_secs(15);
/// Progress is shown at most four times a second.
const PROGRESS_EVERY: Span = Span::from_millis(250);
/// What may wait to be sent to one reader before it is too slow.
const BUFFERED: usize = 64;
/// How long a full buffer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What workers say of how far they are, as it comes in.
#[derive(Debug)]
pub struct Progress(broadcast::Sender<Said>);

#[derive(Clone, Debug)]
struct Said {
    namespace: Namespace,
    run_id: RunId,
    step_id: String,
    progress: ProgressTold,
    at: Timestamp,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress(broadcast::Sender::new(1_024))
    }
}

impl Progress {
    pub fn tell(&self, namespace: &Namespace, task_id: &str, progress: ProgressTold, at: Timestamp) {
        let Some((run_id, path)) = TaskId::from(task_id).place() else { return };
        // Without watchers nobody hears it, which is fine.
        let _ = self.0.send(Said { namespace: namespace.clone(), run_id, step_id: path.to_string(), progress, at });
    }
}

/// One of the streams that are open.
struct Place(Arc<Api>);

impl Place {
    fn enter(api: &Arc<Api>) -> Result<Place, Problem> {
        if api.streams.fetch_add(1, Ordering::SeqCst) >= MOST_STREAMS {
            api.streams.fetch_sub(1, Ordering::SeqCst);
            return Err(Problem::new(Code::TooManyStreams, format!("{MOST_STREAMS} streams are open already.")));
        }
        Ok(Place(api.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

fn opened(waiting: Waiting) -> Reply {
    let headers = vec![(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/event-stream"))];
    Reply { status: 200, headers, body: waiting.boxed() }.header(hyper::header::CACHE_CONTROL, "no-store")
}

fn last_event_id(call: &Call) -> Option<String> {
    Some(call.headers.get("last-event-id")?.to_str().ok()?.to_owned())
}

/// How often a stream looks whether its reader may still read.
const RIGHT_EVERY: Duration = Duration::from_secs(5);

/// When a stream ends by itself.
struct Until {
    api: Arc<Api>,
    headers: hyper::HeaderMap,
    stopping: tokio::sync::watch::Receiver<bool>,
    look: tokio::time::Interval,
}

impl Until {
    fn of(call: &Call) -> Until {
        let look = tokio::time::interval(RIGHT_EVERY);
        Until { api: call.api.clone(), headers: call.headers.clone(), stopping: call.api.stopping(), look }
    }

    /// The server stops, or the reader's key or session is over.
    async fn over(&mut self) {
        loop {
            tokio::select! {
                () = super::stopped(&mut self.stopping) => return,
                _ = self.look.tick() => if !super::serve::is_still_known(&self.api, &self.headers) { return },
            }
        }
    }
}

/// What waits to be sent to one reader.
struct Waiting(mpsc::Receiver<Bytes>);

impl Body for Waiting {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Ends the stream when the reader is gone or too slow.
struct Out {
    events: mpsc::Sender<Bytes>,
    /// A place in line that stays free, so that a reader that is too slow can be told.
    last_word: Option<mpsc::OwnedPermit<Bytes>>,
    /// The id with which the reader takes up again.
    id: Option<String>,
    patience: Duration,
}

fn out_to_reader(id: Option<String>) -> (Out, Waiting) {
    let (events, waiting) = mpsc::channel(BUFFERED + 1);
    let last_word = events.clone().try_reserve_owned().ok();
    (Out { events, last_word, id, patience: PATIENCE }, Waiting(waiting))
}

impl Out {
    async fn send(&mut self, text: String) -> bool {
        match tokio::time::timeout(self.patience, self.events.send(Bytes::from(text))).await {
            Ok(sent) => sent.is_ok(),
            Err(_) => self.gap(json!({ "position": self.id })),
        }
    }

    async fn event(&mut self, name: &str, id: Option<&str>, value: &impl serde::Serialize) -> bool {
        let sent = self.send(written(name, id, value)).await;
        if sent && let Some(id) = id {
            self.id = Some(id.to_owned());
        }
        sent
    }

    /// Says that something is missing, and from where on the reader can go on. It is the last word, and never waits.
    fn gap(&mut self, value: Value) -> bool {
        if let Some(place) = self.last_word.take() {
            place.send(Bytes::from(written("gap", self.id.as_deref(), &value)));
        }
        false
    }
}

fn written(name: &str, id: Option<&str>, value: &impl serde::Serialize) -> String {
    let data = serde_json::to_string(value).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("event: {name}\n{id}data: {data}\n\n")
}

/// `GET /v1/runs/{id}/stream`
pub async fn of_run(call: Call) -> Answered {
    let run_id = call.run_id();
    let after = match last_event_id(&call) {
        Some(text) => Some(
            text.parse::<u64>()
                .map_err(|_| Problem::new(Code::InvalidCursor, "Last-Event-ID is the number of an event."))?,
        ),
        None => None,
    };
    // Followed before it is read: what happens in between is seen twice rather than never.
    let watched = Watched { feed: call.engine.follow(None), said: call.api.progress.0.subscribe() };
    let record = call.engine.run(&run_id).await?;
    let place = Place::enter(&call.api)?;
    let (mut out, waiting) = out_to_reader(after.map(|seq| seq.to_string()));
    let (engine, until) = (call.engine.clone(), Until::of(&call));
    tokio::spawn(async move {
        let _place = place;
        let mut sent = after.unwrap_or(0);
        if record.as_of_seq > sent || after.is_none() {
            sent = record.as_of_seq;
            if !out.event("run", Some(&sent.to_string()), &record).await {
                return;
            }
        }
        if record.state.is_terminal() {
            return;
        }
        watch_run(out, engine, run_id, sent, watched, until).await;
    });
    Ok(opened(waiting))
}

struct Watched {
    feed: Feed,
    said: broadcast::Receiver<Said>,
}

async fn watch_run(mut out: Out, engine: Engine, run_id: RunId, mut sent: u64, mut watched: Watched, mut until: Until) {
    let mut told_at = Timestamp::default();
    loop {
        let go_on = tokio::select! {
            followed = watched.feed.next() => match followed {
                Ok(Followed::Change(change)) if change.key.run_id == run_id && change.to_seq > sent => {
                    match engine.run(&run_id).await {
                        Ok(record) => {
                            sent = record.as_of_seq;
                            out.event("run", Some(&sent.to_string()), &record).await && !record.state.is_terminal()
                        }
                        Err(_) => false,
                    }
                }
                Ok(Followed::Change(_)) => true,
                // It goes on from where it was: only intermediate records were missed.
                Ok(Followed::Gap { .. }) => true,
                Ok(Followed::Expired | Followed::End) | Err(_) => out.gap(json!({ "position": out.id })),
            },
            said = watched.said.recv() => match said {
                Ok(said) if said.run_id == run_id && said.namespace == *engine.namespace()
                    && said.at.since(told_at) >= PROGRESS_EVERY =>
                {
                    told_at = said.at;
                    let Said { step_id, progress, at, .. } = said;
                    let view = json!({ "step_id": step_id, "done": progress.done, "total": progress.total, "message": progress.message, "at": at });
                    out.event("progress", None, &view).await
                }
                _ => true,
            },
            () = tokio::time::sleep(QUIET) => out.send(": still here\n\n".into()).await,
            () = until.over() => false,
        };
        if !go_on {
            return;
        }
    }
}

/// `GET /v1/stream`
pub async fn of_filter(call: Call) -> Answered {
    call.only(super::filter::NAMES)?;
    let filter = filter(call.query.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    let after = match last_event_id(&call) {
        Some(text) => {
            Some(text.parse().map_err(|_| Problem::new(Code::InvalidCursor, "Last-Event-ID is not one of ours."))?)
        }
        None => None,
    };
    let feed = call.engine.follow(after);
    let place = Place::enter(&call.api)?;
    let (out, waiting) = out_to_reader(None);
    let (engine, until) = (call.engine.clone(), Until::of(&call));
    tokio::spawn(async move {
        let _place = place;
        watch_all(out, engine, filter, feed, until).await;
    });
    Ok(opened(waiting))
}

/// Said aloud and not as a comment, because pages never see those: they tell a quiet stream from a dead one by it. Its id
/// lets a reader take up again also when nothing that it asked for has happened yet.
async fn here(out: &mut Out, engine: &Engine, feed: &Feed) -> bool {
    out.event("here", Some(&feed.position().to_string()), &json!({ "at": engine.clock().now() })).await
}

async fn watch_all(mut out: Out, engine: Engine, filter: Filter, mut feed: Feed, mut until: Until) {
    if !here(&mut out, &engine, &feed).await {
        return;
    }
    loop {
        let go_on = tokio::select! {
            followed = feed.next() => match followed {
                Ok(Followed::Change(change)) => {
                    let id = feed.position().to_string();
                    match engine.run(&change.key.run_id).await {
                        Ok(record) if filter.fits(&record) => out.event("run", Some(&id), &record).await,
                        Ok(_) => true,
                        // Nothing is left of it, also not in the archive.
                        Err(error) => super::runs::is_missing(&error),
                    }
                }
                Ok(Followed::Gap { position }) => {
                    out.id = Some(position.to_string());
                    out.gap(json!({ "position": out.id }))
                }
                // Whoever takes up again by itself would ask for the same position for ever: it goes on from now.
                Ok(Followed::Expired) => {
                    out.id = Some(engine.follow(None).position().to_string());
                    out.gap(json!({ "expired": true, "position": out.id }))
                }
                Ok(Followed::End) | Err(_) => false,
            },
            () = tokio::time::sleep(QUIET) => here(&mut out, &engine, &feed).await,
            () = until.over() => false,
        };
        if !go_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(waiting: &mut Waiting) -> Option<String> {
        let bytes = waiting.frame().await?.expect("it never fails").into_data().expect("events");
        Some(String::from_utf8(bytes.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_told_where_to_go_on_after_all_that_waits() {
        let (mut out, mut waiting) = out_to_reader(None);
        out.patience = Duration::from_millis(1);
        for n in 1..=BUFFERED {
            assert!(out.event("run", Some(&format!("p{n}.0")), &n).await);
        }
        assert!(!out.event("run", Some("p99.0"), &99).await, "nobody reads");
        drop(out);
        for n in 1..=BUFFERED {
            assert_eq!(next(&mut waiting).await.as_deref(), Some(&*format!("event: run\nid: p{n}.0\ndata: {n}\n\n")));
        }
        let gap = format!("event: gap\nid: p{BUFFERED}.0\ndata: {{\"position\":\"p{BUFFERED}.0\"}}\n\n");
        assert_eq!(next(&mut waiting).await, Some(gap));
        assert_eq!(next(&mut waiting).await, None);
    }

    #[tokio::test]
    async fn a_stream_that_ends_in_order_says_nothing_of_a_gap() {
        let (mut out, mut waiting) = out_to_reader(None);
        assert!(out.event("run", Some("p1.0"), &1).await);
        drop(out);
        assert!(next(&mut waiting).await.is_some());
        assert_eq!(next(&mut waiting).await, None);
    }
}
