//! The one way in: a batch of requests goes through one transaction, and nobody is answered before it is durable.

mod access;
mod body;
mod claim;
mod definitions;
mod deliver;
mod front;
mod open;
mod start;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::ids::{Namespace, Queue, RunId, WorkerId};
use abide_core::run::command::{Actor, Ask, Command, Holding, Rejection};
use abide_core::run::step::Connection;
use abide_core::run::{Around, Working, row_of};
use abide_core::time::{Span, Timestamp};

use crate::cache::{Cache, Map};
use crate::clock::Clock;
use crate::hub::{Committed, Hub, Position};
use crate::ids::Ids;
use crate::listeners::Listeners;
use crate::reply::Together;
use crate::request::{Answer, Asked, Error, Idempotency, KeptAnswer, Request, Tidy, ToRun, Told, What};
use crate::store::behind::{Behind, Failed, Then};
use crate::store::{
    ArchiveWrite, CommitError, ConnectionWrite, Kept, Posted, RunKey, RunNo, Store, StoreError, Stored, Touched, Writes,
};
use crate::testing::{Bug, Point, at_failpoint, is_planted};

use claim::Served;
use definitions::Definitions;
use front::Fronts;
use open::{Cached, Open};
use waiting::Waiting;

/// At most this many runs take part in one transaction because of messages, releases or their time.
pub const RUNS_A_BATCH: usize = 256;
/// What is kept of runs in memory, counted in rows.
const CACHED_ROWS: usize = 32_768;
/// An engine that could not commit for longer than this has left its workers alone.
pub const SERVING_GAP: Span = Span::from_secs(3);
/// How often it is written down that the engine serves.
pub const SERVING_EVERY: Span = Span::from_secs(1);
/// A run whose time came and that the rules cannot handle is looked at again after this.
const POSTPONED: Span = Span::from_secs(60);
/// A store that failed is not asked again at once for what nobody waits for.
const BREATH: Span = Span::from_millis(100);

/// Takes requests in batches and makes them durable. It is driven by a thread, or by a test.
#[derive(Debug)]
pub struct Lane<S: Store> {
    store: Behind<S>,
    clock: Arc<dyn Clock>,
    ids: Ids,
    hub: Arc<Hub>,
    listeners: Arc<Listeners>,
    runs: Cache<RunKey, Cached>,
    definitions: Definitions,
    /// What is known of the connections of each namespace.
    around: BTreeMap<Namespace, Around>,
    waiting: Waiting,
    fronts: Fronts,
    /// Claims of those who serve every namespace: each begins with another one.
    turns: usize,
    serving_since: Timestamp,
    /// Since when this engine is open.
    open_since: Timestamp,
    served_at: Timestamp,
    now: Timestamp,
    /// Until when workers were heard, for the decision that is being made; and when the first report came that still waits.
    heard_until: Option<Timestamp>,
    reports_since: Option<Timestamp>,
    /// Never later than the first `wake_at`.
    next_wake: Option<Timestamp>,
    /// Messages, or releases of connections, wait in the store.
    inbox_waits: bool,
    releases_wait: bool,
    /// Of these, so many concern runs that cannot be read: whoever takes the oldest must look behind them.
    unreadable: usize,
    /// Ready tasks may have been passed over.
    claim_again: bool,
    /// A transaction was undone: what memory knows may be ahead of the store.
    stale: bool,
    /// Somebody else held the store for as long as anybody waits for it.
    held_up: bool,
    /// What nobody asked for waits until then, because the store failed a moment ago.
    not_before: Option<Timestamp>,
    last_batch: i64,
    last_run: RunNo,
    most_runs: usize,
    growing: Option<Growing>,
    /// A batch that was decided and could not be made durable.
    returned: Arc<Mutex<Option<(Decided, Failed)>>>,
    /// Of the last large batch: who has an answer and perhaps does not know it.
    unwoken: Arc<Mutex<Option<Together>>>,
}

/// The process must not go on: nobody knows what was written.
#[derive(Debug, thiserror::Error)]
#[error("the engine stops, because {0}")]
pub struct Fatal(pub CommitError);

/// What one transaction gathers.
#[derive(Debug, Default)]
struct Batch {
    now: Timestamp,
    runs: Map<RunKey, Open>,
    messages: VecDeque<Posted>,
    writes: Writes,
    touched: Vec<Touched>,
    committed: Vec<Committed>,
    /// Queues in which a task became ready.
    ready: BTreeSet<(Namespace, Queue)>,
    dirty: bool,
    /// Everything that waits in the inbox was applied.
    inbox_drained: bool,
    /// Messages were left to later batches.
    posted: bool,
    releases_drained: bool,
    swept: bool,
}

/// A batch that is being decided.
#[derive(Debug)]
struct Growing {
    batch: Batch,
    begun: bool,
    asked: Vec<Asked>,
    answers: Vec<Result<Answer, Error>>,
    served: Vec<Served>,
    /// When it was last written down that the engine serves, before this.
    served_at: Timestamp,
}

impl Growing {
    fn new(served_at: Timestamp) -> Growing {
        let batch = Batch::default();
        Growing { batch, begun: false, asked: Vec::new(), answers: Vec::new(), served: Vec::new(), served_at }
    }
}

/// A batch on its way to the disk, with everybody who waits for it.
#[derive(Debug)]
struct Decided {
    batch: i64,
    /// Whether there is something to commit.
    dirty: bool,
    now: Timestamp,
    asked: Vec<Asked>,
    answers: Vec<Result<Answer, Error>>,
    served: Vec<Served>,
    committed: Vec<Committed>,
    /// When it was last written down that the engine serves, before this.
    served_at: Timestamp,
}

impl Decided {
    /// It is durable: everybody may know. Most of them are perhaps not woken yet.
    fn tell(self, hub: &Hub) -> Together {
        at_failpoint(Point::BeforeAnswer);
        if self.dirty {
            hub.committed(Position { batch: self.batch, at: self.now }, self.committed);
        }
        let together = Together::default();
        for (one, answer) in self.asked.into_iter().zip(self.answers) {
            one.reply.send_with(answer, &together);
        }
        for (_, parked, tasks) in self.served {
            parked.into_caller().send_with(Ok(Answer::Tasks(tasks)), &together);
        }
        together
    }
}

impl<S: Store> Lane<S> {
    /// A lane that does everything itself.
    pub fn new(store: S, clock: Arc<dyn Clock>, ids: Ids, hub: Arc<Hub>, listeners: Arc<Listeners>) -> Stored<Lane<S>> {
        Lane::over(Behind::lazy(store), clock, ids, hub, listeners)
    }

    /// A lane over a store that writes behind it.
    pub fn over(
        mut store: Behind<S>,
        clock: Arc<dyn Clock>,
        ids: Ids,
        hub: Arc<Hub>,
        listeners: Arc<Listeners>,
    ) -> Stored<Lane<S>> {
        let (last_batch, last_run) = store.last_numbers()?;
        let served = store.serving()?;
        if let Some((_, last)) = served {
            clock.not_before(last);
        }
        let now = clock.now();
        // Downtime is not a dead worker: after a gap every lease gets a full window.
        let serving_since = match served {
            Some((since, last)) if now.since(last) <= SERVING_GAP => since,
            _ => now,
        };
        let mut lane = Lane {
            clock,
            ids,
            hub,
            listeners,
            runs: Cache::new(CACHED_ROWS),
            definitions: Definitions::default(),
            around: BTreeMap::new(),
            waiting: Waiting::default(),
            fronts: Fronts::default(),
            turns: 0,
            serving_since,
            open_since: now,
            served_at: served.map_or(Timestamp::default(), |(_, last)| last),
            now: served.map_or(now, |(_, last)| last.max(now)),
            heard_until: None,
            reports_since: None,
            next_wake: None,
            inbox_waits: true,
            releases_wait: true,
            unreadable: 0,
            claim_again: true,
            stale: true,
            held_up: false,
            not_before: None,
            last_batch,
            last_run,
            most_runs: RUNS_A_BATCH,
            growing: None,
            returned: Arc::default(),
            unwoken: Arc::default(),
            store,
        };
        lane.recall()?;
        Ok(lane)
    }

    /// Forgets what may not be true and reads again what must be known.
    fn recall(&mut self) -> Stored {
        if !self.stale {
            return Ok(());
        }
        self.runs.clear();
        self.fronts.clear();
        self.definitions.clear();
        self.around.clear();
        for (namespace, connection, facts) in self.store.connections()? {
            self.around_of(&namespace).connections.insert(connection, facts);
        }
        self.next_wake = self.store.next_wake()?;
        self.inbox_waits = true;
        self.releases_wait = true;
        self.claim_again = true;
        self.stale = false;
        Ok(())
    }

    /// Who hands over with `later` is called when that is done, and must act if it has to.
    pub fn call_after(&mut self, call: impl Fn() + Send + Sync + 'static) {
        self.store.call_after(call);
    }

    /// Whether there is something to do although nobody asks.
    pub fn has_to_act(&self) -> bool {
        let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        returned || self.due_at() <= self.clock.now()
    }

    /// Whether requests were just refused because of somebody else who holds the store: who waits behind them would wait as
    /// long again.
    pub fn was_held_up(&mut self) -> bool {
        std::mem::take(&mut self.held_up)
    }

    /// Whether a batch is on its way to the disk.
    pub fn is_writing(&self) -> bool {
        self.store.is_writing()
    }

    /// Since when the engine has served without a gap.
    pub fn serving_since(&self) -> Timestamp {
        self.serving_since
    }

    /// Fewer runs a batch than usual, so that a test sees messages wait for their turn.
    #[cfg(feature = "testing")]
    pub fn limit_batches(&mut self, most_runs: usize) {
        self.most_runs = most_runs;
    }

    /// How many more runs may take part in a batch; a few always may, so that nothing waits for ever.
    fn room(&self, batch: &Batch) -> usize {
        self.most_runs.saturating_sub(batch.runs.len()).max(self.most_runs / 16).max(1)
    }

    /// Nothing more comes: whoever watches hears it.
    pub fn close(&self) {
        self.hub.close();
    }

    /// Ends the lane as a crash would: whatever was not committed is gone.
    pub fn into_store(self) -> Option<S> {
        self.store.into_inner()
    }

    /// When there is something to do even if nobody asks.
    pub fn due_at(&self) -> Timestamp {
        if self.inbox_waits || self.releases_wait || self.claim_again {
            return self.not_before.unwrap_or(self.now);
        }
        let served = self.served_at + SERVING_EVERY;
        let due = [self.waiting.first_until(), self.next_wake].into_iter().flatten().fold(served, Timestamp::min);
        self.not_before.map_or(due, |at| due.max(at))
    }

    /// Carries a batch; when this returns, everybody was answered. An empty one does what time alone asks for.
    pub fn carry(&mut self, asked: Vec<Asked>) -> Result<(), Fatal> {
        self.take_in(asked)?;
        self.hand_over(false)
    }

    /// Decides requests, and adds them to what is handed over next.
    pub fn take_in(&mut self, asked: Vec<Asked>) -> Result<(), Fatal> {
        if let Some(returned) = self.take_returned() {
            return self.start_over(returned, asked);
        }
        let asked = self.park_claims(asked);
        let now = self.clock.now();
        self.now = if is_planted(Bug::ClockFollowed) { now } else { now.max(self.now) };
        let mut growing = self.growing.take().unwrap_or_else(|| Growing::new(self.served_at));
        growing.batch.now = self.now;
        self.notice_gap();
        match self.decide_all(&mut growing, &asked) {
            Ok(()) => {
                growing.asked.extend(asked);
                self.growing = Some(growing);
                Ok(())
            }
            Err(error) => {
                growing.asked.extend(asked);
                self.give_up(growing, error)
            }
        }
    }

    /// What workers said since then has not been taken in: until it is, no lease is over for want of it.
    pub fn reports_wait_since(&mut self, since: Option<Timestamp>) {
        self.reports_since = since;
    }

    /// How many wait for what is handed over next. None: there is nothing to hand over.
    pub fn taken_in(&self) -> Option<usize> {
        self.growing.as_ref().map(|growing| growing.asked.len() + growing.served.len())
    }

    /// Memory follows what was decided, and the store makes it durable: before this returns, or perhaps `later`.
    pub fn hand_over(&mut self, later: bool) -> Result<(), Fatal> {
        let Some(mut growing) = self.growing.take() else { return Ok(()) };
        self.store.leave(later);
        if let Err(error) = self.flush(&mut growing.batch) {
            return self.give_up(growing, error);
        }
        // At most one batch is on its way while the next is decided.
        self.store.settled();
        if let Some(returned) = self.take_returned() {
            self.growing = Some(growing);
            self.start_over(returned, Vec::new())?;
            return self.hand_over(later);
        }
        self.not_before = None;
        let Growing { mut batch, asked, answers, served, served_at, .. } = growing;
        let (dirty, now) = (batch.dirty, batch.now);
        let (touched, committed) = (std::mem::take(&mut batch.touched), std::mem::take(&mut batch.committed));
        self.settle(batch);
        let decided = Decided { batch: self.last_batch + 1, dirty, now, asked, answers, served, committed, served_at };
        if !dirty {
            self.store.rollback();
            decided.tell(&self.hub).wake_all();
            return Ok(());
        }
        self.last_batch = decided.batch;
        self.store.commit_then(self.last_batch, now, touched, self.then(decided, later));
        match self.take_returned() {
            Some(returned) => self.start_over(returned, Vec::new()),
            None => Ok(()),
        }
    }

    /// Who hears how a commit ended: everybody, or the lane alone.
    fn then(&self, decided: Decided, later: bool) -> Then {
        let (hub, returned, unwoken) = (self.hub.clone(), self.returned.clone(), self.unwoken.clone());
        let anyway = is_planted(Bug::AnswerBeforeCommit);
        Box::new(move |done| match done {
            Err(failed) if !anyway => {
                *returned.lock().unwrap_or_else(PoisonError::into_inner) = Some((decided, failed));
            }
            _ if later => {
                let together = decided.tell(&hub);
                together.wake_one();
                let before = unwoken.lock().unwrap_or_else(PoisonError::into_inner).replace(together);
                before.into_iter().for_each(|before| before.wake_all());
            }
            _ => decided.tell(&hub).wake_all(),
        })
    }

    /// Who was left to others to be woken, in case they are busy with something else.
    pub fn wake_the_rest(&self) {
        let rest = self.unwoken.lock().unwrap_or_else(PoisonError::into_inner).take();
        rest.into_iter().for_each(|rest| rest.wake_all());
    }

    /// A batch has failed: what was decided since was decided on what has never become true.
    fn start_over(&mut self, (before, failed): (Decided, Failed), asked: Vec<Asked>) -> Result<(), Fatal> {
        self.undo(before.served_at);
        self.last_batch = before.batch - 1;
        let mut again = Vec::new();
        if let Some(growing) = self.growing.take() {
            self.park_again(growing.served);
            again = growing.asked;
        }
        again.extend(asked);
        self.make_good(before, failed)?;
        if again.is_empty() { Ok(()) } else { self.take_in(again) }
    }

    /// The store refused something while a batch was decided.
    fn give_up(&mut self, growing: Growing, error: StoreError) -> Result<(), Fatal> {
        self.store.settled();
        if let Some(returned) = self.take_returned() {
            self.growing = Some(growing);
            return self.start_over(returned, Vec::new());
        }
        self.undo(growing.served_at);
        self.park_again(growing.served);
        if !self.stale {
            self.settle(growing.batch);
        }
        self.try_singly(growing.asked, error)
    }

    fn take_returned(&mut self) -> Option<(Decided, Failed)> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Nothing of the open transaction stays, and nothing that memory took from it.
    fn undo(&mut self, served_at: Timestamp) {
        self.store.rollback();
        self.stale = !is_planted(Bug::CacheSurvivesRollback);
        self.served_at = served_at;
        self.not_before = Some(self.now + BREATH);
    }

    /// Answers those whose batch was not made durable, or tries again for them.
    fn make_good(&mut self, decided: Decided, failed: Failed) -> Result<(), Fatal> {
        let Decided { batch, asked, served, .. } = decided;
        self.park_again(served);
        match failed {
            Failed::Statement(error) => self.try_singly(asked, error),
            Failed::Commit(CommitError::NotDone(error)) => {
                tracing::error!(%error, "commit");
                refuse_all(asked, &unavailable(&error));
                Ok(())
            }
            Failed::Commit(_) if is_planted(Bug::UnknownRepeated) => {
                self.last_batch = batch;
                self.carry(asked)
            }
            Failed::Commit(unknown) => {
                refuse_all(asked, &Error::OutcomeUnknown);
                Err(Fatal(unknown))
            }
        }
    }

    /// One of them hit something that the store refuses; the others are not to suffer from it.
    fn try_singly(&mut self, asked: Vec<Asked>, error: StoreError) -> Result<(), Fatal> {
        // Somebody else holds the store: each alone would wait as long again.
        let held_up = matches!(error, StoreError::Busy(_));
        self.held_up |= held_up;
        if asked.len() < 2 || held_up {
            tracing::error!(%error, "store");
            let why = unavailable(&error);
            refuse_all(asked, &why);
            self.refuse_parked(&why);
            return Ok(());
        }
        tracing::warn!(%error, "a batch failed; its requests are tried one at a time");
        asked.into_iter().try_for_each(|one| self.carry(vec![one]))
    }

    fn decide_all(&mut self, growing: &mut Growing, asked: &[Asked]) -> Stored {
        if !growing.begun {
            self.store.begin()?;
            growing.begun = true;
        }
        self.recall()?;
        let batch = &mut growing.batch;
        for one in asked {
            self.heard_until = one.at.filter(|_| one.is_report());
            let answer = self.answer(batch, &one.request)?;
            growing.answers.push(answer);
        }
        self.heard_until = self.reports_since;
        self.deliver_posted(batch)?;
        self.deliver_releases(batch)?;
        self.wake_due(batch)?;
        self.deliver_messages(batch)?;
        self.touch_serving(batch);
        let served = self.claim_all(batch)?;
        growing.served.extend(self.take_served(served));
        // Everybody who waits has been offered these.
        batch.ready.clear();
        self.inbox_waits = batch.posted || (self.inbox_waits && !batch.inbox_drained);
        self.releases_wait &= !batch.releases_drained;
        (batch.posted, batch.inbox_drained, batch.releases_drained) = (false, false, false);
        if std::mem::take(&mut batch.swept) {
            self.flush(batch)?;
            // Also when nothing was due after all, or the sweep would come back at once.
            self.next_wake = self.store.next_wake()?;
        }
        if self.is_writing() {
            // What is decided early waits where the writer finds it when it comes back.
            self.flush(batch)?;
        }
        Ok(())
    }

    /// Memory follows the store.
    fn settle(&mut self, batch: Batch) {
        let mut runs: Vec<(RunKey, Open)> = batch.runs.into_iter().collect();
        runs.sort_unstable_by_key(|(_, open)| open.no);
        for (key, open) in runs {
            if let Some((cached, weight)) = open.into_cached() {
                self.runs.put(key, cached, weight);
            }
        }
    }

    /// One request. An `Err` inside is its caller's; an `Err` outside is the store's.
    fn answer(&mut self, batch: &mut Batch, request: &Request) -> Stored<Result<Answer, Error>> {
        if let Some(idempotency) = &request.idempotency
            && let Some(kept) = self.kept_for(batch, &request.namespace, idempotency)?
        {
            return match kept.digest == idempotency.digest {
                true => self.answer_again(batch, &request.namespace, &kept),
                false => Ok(Err(Error::KeyReused)),
            };
        }
        let namespace = &request.namespace;
        let answer = match &request.what {
            What::Register(register) => self.register(batch, namespace, register)?.map(|answer| (answer, None)),
            What::Start(new) => with_run(self.start(batch, namespace, new)?),
            What::Run(asked) => with_run(self.command(batch, namespace, asked)?),
            What::Rerun(rerun) => with_run(self.rerun(batch, namespace, rerun)?),
            What::Reconnected(connection) => self.reconnected(batch, namespace, connection)?,
            What::Broken(connection) => self.broken(batch, namespace, connection),
            What::Tidy(tidy) => self.tidy(batch, namespace, tidy)?.map(|answer| (answer, None)),
            What::Count(counted) => {
                batch.writes.counted = Some((**counted).clone());
                Ok((Answer::Counted, None))
            }
            What::Access(access) => self.admit(batch, access).map(|answer| (answer, access.made())),
            What::Recall => Ok((Answer::Unsaid, None)),
            What::Keep(said) => Ok((Answer::Said(said.clone()), Some(KeptAnswer::said(said.clone())))),
            What::Claim(_) | What::ClaimAnywhere(_) => Err(Error::Invalid("a claim is parked, not answered".into())),
        };
        let (answer, kept) = match answer {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        if let (Some(idempotency), Some(kept)) = (&request.idempotency, kept)
            && !is_planted(Bug::KeyForgotten)
        {
            let answer = serde_json::to_string(&kept).map_err(|error| StoreError::Failed(error.to_string()))?;
            let kept = Kept { digest: idempotency.digest, answer, at: batch.now };
            batch.keep(namespace, &idempotency.key, kept);
        }
        Ok(Ok(answer))
    }

    /// What is kept for a request, also where an earlier build kept the answer to the very same one.
    fn kept_for(&mut self, batch: &Batch, namespace: &Namespace, asked: &Idempotency) -> Stored<Option<Kept>> {
        let kept = self.kept(batch, namespace, &asked.key)?;
        match &asked.former_key {
            Some(former) if kept.is_none() => {
                let former = self.kept(batch, namespace, former)?;
                Ok(former.filter(|former| former.digest == asked.digest))
            }
            _ => Ok(kept),
        }
    }

    fn kept(&mut self, batch: &Batch, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        let written = batch.writes.kept.iter().find(|(of, known, _)| of == namespace && known == key);
        match written {
            Some((_, _, kept)) => Ok(Some(kept.clone())),
            None => self.store.kept(namespace, key),
        }
    }

    /// The answer of a request that was made before, from what is kept of it.
    fn answer_again(&mut self, batch: &mut Batch, namespace: &Namespace, kept: &Kept) -> Stored<Result<Answer, Error>> {
        let kept: KeptAnswer =
            serde_json::from_str(&kept.answer).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        if let Some(released) = kept.released {
            return Ok(Ok(Answer::Released(released)));
        }
        if let Some(said) = kept.said {
            return Ok(Ok(Answer::Said(said)));
        }
        let Some(run_id) = kept.run_id else { return Ok(Err(Error::KeyReused)) };
        let key = RunKey { namespace: namespace.clone(), run_id };
        match self.open(batch, &key)? {
            Some(open) => Ok(Ok(Answer::Run(Box::new(open.told(abide_core::run::command::Reply::Replayed, true))))),
            None => self.answer_of_archived(&key),
        }
    }

    /// A run that was archived meanwhile is still the run that was started under its key.
    fn answer_of_archived(&mut self, key: &RunKey) -> Stored<Result<Answer, Error>> {
        let Some((state, seq)) = self.store.archived(key)? else { return Ok(Err(no_run(&key.run_id))) };
        let reply = abide_core::run::command::Reply::Replayed;
        Ok(Ok(Answer::Run(Box::new(Told {
            run_id: key.run_id.clone(),
            state,
            seq,
            reply,
            replayed: true,
            task: None,
            receipt: None,
            steps: Vec::new(),
        }))))
    }

    fn command(&mut self, batch: &mut Batch, namespace: &Namespace, asked: &ToRun) -> Stored<Result<Told, Error>> {
        let key = RunKey { namespace: namespace.clone(), run_id: asked.run_id.clone() };
        let Some(open) = self.open(batch, &key)? else {
            return Ok(Err(match self.store.archived_as(&key)? {
                Some(state) => Error::Rejected { why: Rejection::RunTerminal(state), state: Some(state) },
                None => no_run(&asked.run_id),
            }));
        };
        let current = open.run.head.seq;
        if let Some(expected) = asked.expected_seq.filter(|expected| *expected != current) {
            return Ok(Err(Error::VersionMismatch { current, expected }));
        }
        let owner = asked.command.ask.holding().and_then(|holding| owner_of(&open.run, holding));
        if let (Some(owner), Some(name)) = (&owner, &asked.held_by)
            && !is_held_by(owner, name)
        {
            return Ok(Err(Error::NotLeaseOwner { owner: owner.clone() }));
        }
        if let Some(link) = &asked.link
            && let Err(why) = self.usable(batch, link)?
        {
            return Ok(Err(Error::Rejected { why, state: None }));
        }
        let named = owner.as_ref().filter(|_| asked.command.actor.id.is_empty()).map(|owner| {
            let actor = Actor::worker(owner.as_str());
            Command { actor, ..asked.command.clone() }
        });
        let command = named.as_ref().unwrap_or(&asked.command);
        let reply = match self.decide(batch, &key, command, &asked.groups)? {
            Ok(reply) => reply,
            Err(why) => {
                self.keep_late_answer(batch, &key, &asked.command.ask, &why)?;
                let state = batch.runs.get(&key).and_then(|open| open.run.head.state);
                return Ok(Err(Error::Rejected { why, state }));
            }
        };
        batch.writes.links_used.extend(asked.link.map(|link| (link, batch.now)));
        let task = match asked.command.ask.holding().filter(|_| asked.claim_next) {
            Some(holding) => self.claim_next(batch, &key, holding, owner.as_ref())?,
            None => None,
        };
        let receipt = self.receipt_in(batch, &key, &asked.command.ask, &reply)?;
        let steps = self.steps_spoken_of(batch, &key, &asked.command.ask, &reply)?;
        let open = batch.runs.get(&key).ok_or_else(|| StoreError::Failed("a run left its batch".into()))?;
        let replayed = reply == abide_core::run::command::Reply::Replayed;
        Ok(Ok(Told { task, receipt, steps, ..open.told(reply, replayed) }))
    }

    /// Raises the generation of a connection and marks everything that waits for it.
    fn reconnected(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        connection: &Connection,
    ) -> Stored<Result<(Answer, Option<KeptAnswer>), Error>> {
        // Waits that this very batch began are counted too.
        self.flush(batch)?;
        let released = self.store.waiting_for(namespace, connection)?;
        let facts = self.around_of(namespace).connections.entry(connection.clone()).or_default();
        facts.generation += 1;
        facts.reconnected_at = Some(batch.now);
        facts.broken = false;
        let (facts, release) = (*facts, !is_planted(Bug::ReconnectIgnored));
        let write = ConnectionWrite { namespace: namespace.clone(), connection: connection.clone(), facts, release };
        batch.writes.connections.push(write);
        self.releases_wait = true;
        self.flush(batch)?;
        Ok(Ok((Answer::Released(released), Some(KeptAnswer { released: Some(released), ..KeptAnswer::default() }))))
    }

    fn broken(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        connection: &Connection,
    ) -> Result<(Answer, Option<KeptAnswer>), Error> {
        let facts = self.around_of(namespace).connections.entry(connection.clone()).or_default();
        facts.broken = true;
        let facts = *facts;
        let write =
            ConnectionWrite { namespace: namespace.clone(), connection: connection.clone(), facts, release: false };
        batch.writes.connections.push(write);
        Ok((Answer::Released(0), Some(KeptAnswer { released: Some(0), ..KeptAnswer::default() })))
    }

    /// Moves packed runs to the archive, unless something happened to them since.
    fn tidy(&mut self, batch: &mut Batch, namespace: &Namespace, tidy: &Tidy) -> Stored<Result<Answer, Error>> {
        let mut moved = 0;
        for packed in &tidy.runs {
            let key = RunKey { namespace: namespace.clone(), run_id: packed.run_id.clone() };
            let Some(open) = self.open(batch, &key)? else { continue };
            let head = &open.run.head;
            if !open.run.is_terminal() || head.pinned || head.seq != packed.seq {
                continue;
            }
            let (no, bundle, size) = (open.no, packed.bundle.clone(), packed.size);
            batch.writes.archived.push(ArchiveWrite { no, bundle, size, at: batch.now });
            batch.runs.remove(&key);
            moved += 1;
        }
        batch.writes.forgotten = tidy.forget;
        self.flush(batch)?;
        Ok(Ok(Answer::Archived(moved)))
    }

    /// Hands runs to the rules whose time has come.
    fn wake_due(&mut self, batch: &mut Batch) -> Stored {
        if self.next_wake.is_none_or(|at| at > batch.now) {
            return Ok(());
        }
        // The rows must say when they wake before they are asked.
        self.flush(batch)?;
        batch.swept = true;
        let room = self.room(batch);
        let wake = Command::new(Actor::system(), Ask::Wake);
        for (no, key) in self.store.due(batch.now, room)? {
            match self.decide_alone(batch, &key, &wake)? {
                Some(Ok(_)) => continue,
                Some(Err(why)) => {
                    tracing::error!(run = %key.run_id, %why, "a run whose time has come cannot be handled");
                }
                None => {}
            }
            batch.writes.postponed.push((no, batch.now + POSTPONED));
            if let Some(open) = batch.runs.get_mut(&key) {
                open.stored_wake = Some(batch.now + POSTPONED);
            }
        }
        Ok(())
    }

    /// A time in which nothing could be committed gives every lease a full window. It is noticed before anybody is judged:
    /// a machine that slept would otherwise find all its workers dead.
    fn notice_gap(&mut self) {
        if self.served_at > Timestamp::default() && self.now.since(self.served_at) > SERVING_GAP {
            self.serving_since = self.now;
        }
    }

    /// Writes down who has begun to listen, and once a second that the engine serves, and whom.
    fn touch_serving(&mut self, batch: &mut Batch) {
        let new = self.listeners.new_ones(batch.now);
        batch.dirty |= !new.is_empty();
        batch.writes.heard.extend(new);
        if batch.now.since(self.served_at) < SERVING_EVERY {
            return;
        }
        batch.writes.heard.extend(self.listeners.to_write(batch.now));
        batch.writes.served = Some((self.serving_since, batch.now));
        self.served_at = batch.now;
        batch.dirty = true;
    }

    fn around_of(&mut self, namespace: &Namespace) -> &mut Around {
        let around = self.around.entry(namespace.clone()).or_default();
        around.open_since = self.open_since;
        around.serving_since =
            if is_planted(Bug::ServedTimeIgnored) { Timestamp::default() } else { self.serving_since };
        around
    }
}

impl Batch {
    fn keep(&mut self, namespace: &Namespace, key: &str, kept: Kept) {
        self.writes.kept.push((namespace.clone(), key.to_owned(), kept));
        self.dirty = true;
    }
}

fn refuse_all(asked: Vec<Asked>, why: &Error) {
    for one in asked {
        one.reply.send(Err(why.clone()));
    }
}

fn unavailable(error: &StoreError) -> Error {
    match error {
        StoreError::Full => Error::StorageFull,
        StoreError::Busy(_) => Error::Overloaded,
        StoreError::Conflict | StoreError::Corrupt(_) | StoreError::Damaged(_) | StoreError::Failed(_) => {
            Error::StoreUnavailable(error.to_string())
        }
    }
}

fn with_run(told: Result<Told, Error>) -> Result<(Answer, Option<KeptAnswer>), Error> {
    told.map(|told| {
        let kept = KeptAnswer { run_id: Some(told.run_id.clone()), ..KeptAnswer::default() };
        (Answer::Run(Box::new(told)), Some(kept))
    })
}

/// Who holds the lease that a worker speaks for, if it is the present one.
fn owner_of(run: &Working, holding: &Holding) -> Option<WorkerId> {
    let lease = run.step(row_of(&holding.path).as_str())?.lease()?;
    (lease.epoch == holding.epoch).then(|| lease.owner.clone())
}

/// A lease that was claimed with a key is owned by `NAME/WORKER`.
fn is_held_by(owner: &WorkerId, name: &str) -> bool {
    owner.as_str().strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
}

/// A row that cannot be read concerns its own run alone: it is told and passed over. Whatever else the store says, a damaged
/// file among it, concerns all.
fn pass_over<T>(run_id: &RunId, read: Stored<T>) -> Stored<Option<T>> {
    match read {
        Err(StoreError::Corrupt(why)) => {
            tracing::error!(run = %run_id, %why, "a run cannot be read; `abide doctor` says what is wrong with it");
            Ok(None)
        }
        read => read.map(Some),
    }
}

fn no_run(run_id: &RunId) -> Error {
    Error::Rejected { why: Rejection::NoRun(run_id.clone()), state: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_row_that_cannot_be_read_is_passed_over() {
        let run = RunId::from("run_a");
        assert!(matches!(pass_over(&run, Ok(7)), Ok(Some(7))));
        assert!(matches!(pass_over::<()>(&run, Err(StoreError::Corrupt("x".into()))), Ok(None)));
        for error in [StoreError::Damaged("x".into()), StoreError::Failed("x".into()), StoreError::Full] {
            assert!(pass_over::<()>(&run, Err(error)).is_err());
        }
    }
}
