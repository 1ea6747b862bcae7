//! Queues, workers with what they hold, connections.

use abide_core::explain::{self, QueueFacts};
use abide_core::ids::{Path, Queue, RunId, WorkerId};
use abide_core::run::step::{Connection, Progress, Step, TaskKind};
use abide_core::run::{ConnectionFacts, NEWEST};
use abide_core::time::Timestamp;
use serde::Serialize;

use super::{Read, Snapshot};
use crate::engine::Engine;
use crate::store::Stored;
use crate::store::sqlite::read;

/// Leases that are looked at for the list of workers.
const LEASES: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueView {
    pub queue: Queue,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
    /// Who has asked for work lately.
    pub listeners: Vec<WorkerId>,
    /// What waits, by handler: a queue that is listened to may still have tasks that nobody offers to do.
    pub handlers: Vec<HandlerView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandlerView {
    pub handler: String,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
    /// How many workers have asked for this handler lately.
    pub listeners: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerView {
    pub worker: WorkerId,
    pub queue: Queue,
    pub handlers: Option<Vec<String>>,
    pub last_poll_at: Timestamp,
    /// It has asked this queue for work lately.
    pub listening: bool,
    /// Tasks of this queue that it holds; the newest 20 of them.
    pub lease_count: usize,
    pub leases: Vec<LeaseView>,
}

/// A task that a worker holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeaseView {
    pub run_id: RunId,
    pub step_id: Path,
    pub handler: String,
    pub granted_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// The proof that it is alive.
    pub last_heartbeat_at: Option<Timestamp>,
    /// The proof that it gets anywhere, where it says so.
    pub progress: Option<Progress>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectionView {
    pub tool: String,
    pub account: String,
    pub broken: bool,
    pub generation: u64,
    pub reconnected_at: Option<Timestamp>,
    pub waiting_runs: u64,
}

impl LeaseView {
    /// The lease of a step, if this worker holds it and it is one of this queue.
    pub(super) fn of(run_id: &RunId, step: &Step, worker: &WorkerId, queue: &Queue) -> Option<LeaseView> {
        let task = step.task.as_ref().filter(|task| task.queue == *queue)?;
        let lease = task.lease.as_ref().filter(|lease| lease.owner == *worker)?;
        let live = step.live.as_ref();
        Some(LeaseView {
            run_id: run_id.clone(),
            step_id: step.path.clone(),
            handler: task.handler.to_string(),
            granted_at: lease.granted_at,
            expires_at: live.map(|live| live.expires_at),
            last_heartbeat_at: live.map(|live| live.last_heartbeat_at),
            progress: live.and_then(|live| live.progress.clone()),
        })
    }
}

impl Snapshot<'_> {
    pub(super) fn queue(&self, queue: &Queue) -> Stored<QueueFacts> {
        let mut listeners = read::listeners(self.db, self.namespace, queue)?;
        // What this process has heard is newer than what is written down.
        for heard in self.listeners.of(self.namespace, queue) {
            match listeners.iter_mut().find(|known| known.worker == heard.worker) {
                Some(known) => *known = heard,
                None => listeners.push(heard),
            }
        }
        let (depth, oldest_at) = read::depth(self.db, self.namespace, queue)?;
        Ok(QueueFacts { listeners, depth, oldest_at })
    }

    pub(super) fn handlers(&self, queue: &Queue, facts: &QueueFacts) -> Stored<Vec<HandlerView>> {
        let waiting = read::depth_by_handler(self.db, self.namespace, queue)?;
        let view = |read::Waiting { handler, is_body, depth, oldest_at }| {
            let kind = if is_body { TaskKind::Body } else { TaskKind::Step };
            let listeners = facts.heard(&handler, kind, self.now);
            HandlerView { handler: handler.to_string(), depth, oldest_at, listeners }
        };
        Ok(waiting.into_iter().map(view).collect())
    }
}

impl Engine {
    pub async fn queues(&self) -> Read<Vec<QueueView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            for queue in read::queues(snapshot.db, snapshot.namespace)? {
                let facts = snapshot.queue(&queue)?;
                let lately = |at: Timestamp| snapshot.now.since(at) <= explain::LISTENING;
                let listening = facts.listeners.iter().filter(|listener| lately(listener.last_poll_at));
                let listeners = listening.map(|listener| listener.worker.clone()).collect();
                let handlers = snapshot.handlers(&queue, &facts)?;
                views.push(QueueView { queue, depth: facts.depth, oldest_at: facts.oldest_at, listeners, handlers });
            }
            Ok(views)
        })
        .await
    }

    pub async fn workers(&self) -> Read<Vec<WorkerView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            let leased = read::leased(snapshot.db, snapshot.namespace, LEASES)?;
            for queue in read::queues(snapshot.db, snapshot.namespace)? {
                for listener in snapshot.queue(&queue)?.listeners {
                    let handlers = listener.handlers.map(|names| names.iter().map(ToString::to_string).collect());
                    let mut leases: Vec<LeaseView> = leased
                        .iter()
                        .filter_map(|(run_id, step)| LeaseView::of(run_id, step, &listener.worker, &queue))
                        .collect();
                    leases.sort_by_key(|lease| std::cmp::Reverse(lease.granted_at));
                    let lease_count = leases.len();
                    leases.truncate(NEWEST);
                    views.push(WorkerView {
                        lease_count,
                        leases,
                        worker: listener.worker,
                        queue: queue.clone(),
                        handlers,
                        last_poll_at: listener.last_poll_at,
                        listening: snapshot.now.since(listener.last_poll_at) <= explain::LISTENING,
                    });
                }
            }
            Ok(views)
        })
        .await
    }

    pub async fn connections(&self) -> Read<Vec<ConnectionView>> {
        self.read(|snapshot| {
            let known = read::connections(snapshot.db, snapshot.namespace)?;
            let view = |(Connection { tool, account }, facts, waiting_runs): (Connection, ConnectionFacts, u64)| {
                let ConnectionFacts { generation, reconnected_at, broken } = facts;
                ConnectionView { tool, account, broken, generation, reconnected_at, waiting_runs }
            };
            Ok(known.into_iter().map(view).collect())
        })
        .await
    }
}
