//! The judge: after every step it reads what was written straight from the store and holds it against the log, the rules
//! and what was promised to anybody. It shares no memory with the engine.

mod log;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Epoch, Path, RunId};
use abide_core::run::Working;
use abide_core::run::command::{Actor, ActorKind, Ask, Next, Reply};
use abide_core::run::invariant::{self, LogReader};
use abide_core::run::step::{Connection, Step, Wait};
use abide_core::time::{Span, Timestamp};
use abide_engine::request::{Answer, Error};
use abide_engine::store::sqlite::feed;
use abide_engine::store::{RunKey, RunNo};
use rusqlite::Connection as Db;

use crate::letter::{Letter, Wish};

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The number of the invariant, or a name.
    pub rule: String,
    pub what: String,
}

pub type Judged<T = ()> = Result<T, Broken>;

pub fn broken<T>(rule: impl Into<String>, what: impl Into<String>) -> Judged<T> {
    Err(Broken { rule: rule.into(), what: what.into() })
}

/// What one step of the engine was about.
#[derive(Debug, Default)]
pub struct Moment {
    pub number: u64,
    pub serving_since: Timestamp,
    /// The end of the last time in which nothing could be committed.
    pub gap_ended: Timestamp,
    /// Requests of these actors were accepted, or nobody knows.
    pub accepted: BTreeSet<(String, String)>,
    /// How many runs these requests may have started.
    pub starts: BTreeMap<String, usize>,
    /// How many runs reconnects should free together, when they are all that was asked.
    pub frees: Option<u64>,
    /// The process died, so answers are not known.
    pub died: bool,
    pub clean: bool,
}

/// A lease as the log tells it.
#[derive(Clone, Debug)]
pub struct Leased {
    pub row: Path,
    pub owner: String,
    pub window: Span,
    pub expires_at: Timestamp,
    pub ended: Option<u64>,
}

/// A run as the judge knows it: folded from its log, event by event.
#[derive(Debug)]
pub struct Seen {
    pub no: RunNo,
    pub key: RunKey,
    pub run: Working,
    pub wake_at: Option<Timestamp>,
    reader: LogReader,
    texts: BTreeMap<Path, (Arc<Step>, String)>,
    fed: u64,
    pub leases: BTreeMap<Epoch, Leased>,
    children_ended: BTreeSet<RunId>,
    completed: BTreeSet<Path>,
    released: BTreeSet<(String, u64)>,
}

#[derive(Debug)]
pub struct Judge {
    db: Db,
    pub runs: BTreeMap<RunNo, Seen>,
    pub ids: BTreeMap<RunId, RunNo>,
    last_batch: i64,
    batch_at: Timestamp,
    served_at: Timestamp,
    /// In which step a request started runs, and how many; and runs by idempotency key.
    started: BTreeMap<String, (u64, usize)>,
    keys: BTreeMap<String, RunId>,
    claims: BTreeMap<String, (u64, Vec<(RunNo, Epoch)>)>,
    pub kinds: BTreeSet<String>,
    pub states: BTreeSet<RunState>,
    pub refusals: BTreeSet<&'static str>,
    pub events: u64,
    pub checks: u64,
}

impl Judge {
    pub fn new(db: Db) -> Judge {
        Judge {
            db,
            runs: BTreeMap::new(),
            ids: BTreeMap::new(),
            last_batch: 0,
            batch_at: Timestamp::default(),
            served_at: Timestamp::default(),
            started: BTreeMap::new(),
            keys: BTreeMap::new(),
            claims: BTreeMap::new(),
            kinds: BTreeSet::new(),
            states: BTreeSet::new(),
            refusals: BTreeSet::new(),
            events: 0,
            checks: 0,
        }
    }

    /// When an engine last wrote down that it serves.
    pub fn served(&self) -> Option<Timestamp> {
        let text = "select max(last_at, (select at from batches order by batch desc limit 1)) from serving";
        let row = self.db.prepare_cached(text).and_then(|mut served| served.query_row([], |row| row.get::<_, i64>(0)));
        row.ok().map(Timestamp::from_micros)
    }

    /// How many runs wait for a connection and have heard of no reconnect.
    pub fn waiting_for(&self, namespace: &str, connection: &Connection) -> Option<u64> {
        let text = "
            select count(distinct run_no) from connection_waits
            where  namespace = ?1 and tool = ?2 and account = ?3 and released = 0";
        let mut count = self.db.prepare_cached(text).ok()?;
        let of = (namespace, &connection.tool, &connection.account);
        count.query_row(of, |row| row.get::<_, i64>(0)).ok().map(|count| count as u64)
    }

    pub fn of(&self, run_id: &RunId) -> Option<&Seen> {
        self.runs.get(self.ids.get(run_id)?)
    }

    /// Everything that must hold after a step of the engine.
    pub fn judge(
        &mut self,
        step: &Moment,
        written: BTreeSet<RunNo>,
        answers: &[(Letter, Result<Answer, Error>)],
    ) -> Judged {
        for (letter, answer) in answers {
            self.hear_beat(letter, answer);
        }
        for no in &written {
            self.check_run(*no, step)?;
        }
        self.check_feed(&written)?;
        for (letter, answer) in answers {
            self.check_answer(step, letter, answer)?;
        }
        self.check_freed(step, answers)?;
        self.check_clock()
    }

    /// I45: of several reconnects only the first frees a run.
    fn check_freed(&self, step: &Moment, answers: &[(Letter, Result<Answer, Error>)]) -> Judged {
        let Some(frees) = step.frees.filter(|_| step.clean && !step.died) else { return Ok(()) };
        let freed = answers.iter().filter_map(|(_, answer)| match answer {
            Ok(Answer::Released(runs)) => Some(*runs),
            _ => None,
        });
        match freed.sum::<u64>() {
            freed if freed == frees => Ok(()),
            freed => broken("I45", format!("{frees} runs waited for a connection and {freed} were freed")),
        }
    }

    /// Whether the engine may rest until `due_at`.
    pub fn check_rest(&self, now: Timestamp, due_at: Timestamp) -> Judged {
        let first = "select min(wake_at) from runs where wake_at is not null";
        if let Some(wake_at) = self.number(first)?.map(Timestamp::from_micros)
            && wake_at < due_at
            && due_at > now
        {
            return broken("I34", format!("a run wakes at {wake_at} and the engine rests until {due_at}"));
        }
        if due_at <= now {
            return Ok(());
        }
        if self.number("select min(n) from inbox")?.is_some() {
            return broken("I39", "a message waits in the inbox and the engine rests");
        }
        match self.number("select min(run_no) from connection_waits where released = 1")? {
            Some(no) => broken("I45", format!("run {no} was released and the engine rests")),
            None => Ok(()),
        }
    }

    /// What may keep an engine from resting.
    pub fn unrest(&self) -> String {
        let number = |text: &str| self.number(text).ok().flatten();
        format!(
            "inbox {:?}, released {:?}, first wake {:?}",
            number("select count(*) from inbox"),
            number("select count(*) from connection_waits where released = 1"),
            number("select min(wake_at) from runs where wake_at is not null").map(Timestamp::from_micros),
        )
    }

    /// Everything at once: also what nobody touched.
    pub fn check_all(&mut self, step: &Moment) -> Judged {
        for no in self.runs.keys().copied().collect::<Vec<_>>() {
            self.check_run(no, step)?;
        }
        self.check_between()
    }

    /// What holds between runs, and rows that no run knows of.
    pub fn check_between(&self) -> Judged {
        let of_runs = [
            ("runs", self.runs.len()),
            ("ready_tasks", self.count(|seen| seen.run.open().filter(|row| row.is_ready()).count())),
            ("approvals", self.count(|seen| waits(&seen.run, |wait| matches!(wait, Wait::Approval(_))))),
            ("connection_waits", self.count(|seen| waits(&seen.run, |wait| matches!(wait, Wait::Auth { .. })))),
        ];
        for (table, rows) in of_runs {
            let stored = self.number(&format!("select count(*) from {table}"))?.unwrap_or(0);
            if stored != rows as i64 {
                return broken("rows", format!("{table} has {stored} rows, the runs give {rows}"));
            }
        }
        self.check_waits_for_connections()?;
        self.check_keys()?;
        self.check_families()
    }

    fn count(&self, of: impl Fn(&Seen) -> usize) -> usize {
        self.runs.values().map(of).sum()
    }

    fn number(&self, text: &str) -> Judged<Option<i64>> {
        let found = self.db.prepare_cached(text).and_then(|mut one| one.query_row([], |row| row.get(0)));
        found.or_else(|error| broken("store", error.to_string()))
    }

    /// I45: nothing waits for a connection that was reconnected after the wait began.
    fn check_waits_for_connections(&self) -> Judged {
        let text = "
            select run_no, path, reconnected_at
            from   connection_waits join connections using (namespace, tool, account)
            where  released = 0 and reconnected_at is not null";
        for (no, path, at) in
            self.list(text, |row| Ok((row.get::<_, RunNo>(0)?, row.get::<_, String>(1)?, row.get(2)?)))?
        {
            let at = Timestamp::from_micros(at);
            let since =
                self.runs.get(&no).and_then(|seen| seen.run.step(&path)?.block.as_ref()).map(|block| block.since);
            if since.is_some_and(|since| since < at) {
                return broken(
                    "I45",
                    format!("{path} of run {no} waits since {since:?}, the connection works since {at}"),
                );
            }
        }
        Ok(())
    }

    fn list<T>(&self, text: &str, read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Judged<Vec<T>> {
        let rows = self.db.prepare_cached(text).and_then(|mut all| all.query_map([], |row| read(row))?.collect());
        rows.or_else(|error: rusqlite::Error| broken("store", error.to_string()))
    }

    fn list_after<T>(
        &self,
        text: &str,
        after: i64,
        read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Judged<Vec<T>> {
        let rows = self.db.prepare_cached(text).and_then(|mut all| all.query_map([after], |row| read(row))?.collect());
        rows.or_else(|error: rusqlite::Error| broken("store", error.to_string()))
    }

    /// I24: one key, one run.
    fn check_keys(&self) -> Judged {
        let text = "
            select value, count(*) from run_labels join runs using (run_no)
            where  name = 'key' and origin_run is null group by runs.namespace, value having count(*) > 1";
        match self.list(text, |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?.first() {
            Some((key, runs)) => broken("I24", format!("the key {key} started {runs} runs")),
            None => Ok(()),
        }
    }

    /// I39: who waits for a child has one that is open, or whose end is on its way.
    fn check_families(&self) -> Judged {
        let inbox = "select target, source from inbox";
        let posted = self.list(inbox, |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let under_way = |parent: &RunId, child: &RunId| {
            posted.iter().any(|(to, from)| {
                (to == parent.as_str() && from == child.as_str()) || (to == child.as_str() && from == parent.as_str())
            })
        };
        for seen in self.runs.values() {
            for row in seen.run.open() {
                let Some(Wait::Child { run_id }) = row.block.as_ref().map(|block| &block.wait) else { continue };
                let open = self.of(run_id).is_some_and(|child| !child.run.is_terminal());
                if !open && !under_way(&seen.key.run_id, run_id) {
                    let what = format!("{} of {} waits for {run_id}, which is over", row.path, seen.key.run_id);
                    return broken("I39", what);
                }
            }
        }
        Ok(())
    }

    /// D2: whoever reads the batches misses nothing.
    fn check_feed(&mut self, written: &BTreeSet<RunNo>) -> Judged {
        let text = "select batch, at, touched from batches where batch > ?1 order by batch";
        let batches = self.list_after(text, self.last_batch, |row| {
            Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?))
        })?;
        for (batch, at, touched) in batches {
            let at = Timestamp::from_micros(at);
            if at < self.batch_at {
                return broken("I46", format!("batch {batch} is of {at}, the one before of {}", self.batch_at));
            }
            (self.last_batch, self.batch_at) = (batch, at);
            for one in feed::decode(&touched).unwrap_or_default() {
                let Some(seen) = self.runs.get_mut(&one.no) else {
                    return broken("I47", format!("batch {batch} touches run {}, which was not written", one.no));
                };
                if one.from_seq != seen.fed + 1 {
                    return broken(
                        "I47",
                        format!("batch {batch} goes on with {}, {} was last", one.from_seq, seen.fed),
                    );
                }
                seen.fed = one.to_seq;
            }
        }
        let missed = written.iter().filter_map(|no| self.runs.get(no)).find(|seen| seen.fed != seen.run.head.seq);
        match missed {
            Some(seen) => broken("I47", format!("no batch tells of the last events of {}", seen.key.run_id)),
            None => Ok(()),
        }
    }

    /// I46: what is written down of time never goes back.
    fn check_clock(&mut self) -> Judged {
        let served = self.served().unwrap_or_default();
        if served < self.served_at {
            return broken("I46", format!("the engine served until {}, now until {served}", self.served_at));
        }
        self.served_at = served;
        Ok(())
    }

    /// A heartbeat that was acknowledged moves the end of its lease.
    fn hear_beat(&mut self, letter: &Letter, answer: &Result<Answer, Error>) {
        let (Wish::Run { run_id, ask, .. }, Ok(Answer::Run(told))) = (&letter.wish, answer) else { return };
        let (Some(holding), Reply::Beat { expires_at, .. }) = (ask.holding(), &told.reply) else { return };
        let Some(seen) = self.ids.get(run_id).and_then(|no| self.runs.get_mut(no)) else { return };
        if let Some(lease) = seen.leases.get_mut(&holding.epoch) {
            lease.expires_at = lease.expires_at.max(*expires_at);
        }
    }

    fn check_answer(&mut self, step: &Moment, letter: &Letter, answer: &Result<Answer, Error>) -> Judged {
        match answer {
            Ok(Answer::Run(told)) => {
                let Some(seen) = self.of(&told.run_id) else {
                    return broken("I22", format!("{} was promised and is not stored", told.run_id));
                };
                if seen.run.head.seq < told.seq {
                    let stored = seen.run.head.seq;
                    return broken(
                        "I22",
                        format!("{} was told of event {}, {stored} is stored", told.run_id, told.seq),
                    );
                }
                if let Some(task) = &told.task {
                    self.check_lease(task.run_id.clone(), task.epoch, &letter.actor())?;
                }
                self.check_told(step, letter, told)
            }
            Ok(Answer::Tasks(tasks)) => {
                for task in tasks {
                    self.check_lease(task.run_id.clone(), task.epoch, &letter.actor())?;
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(why) => {
                self.refusals.insert(why.code());
                let accident = matches!(
                    why,
                    Error::StoreUnavailable(_) | Error::StorageFull | Error::Overloaded | Error::OutcomeUnknown
                );
                if accident && step.clean {
                    return broken("store", format!("{why} and nothing was wrong: {:?}", letter.wish));
                }
                match why.code() {
                    "internal" | "transition-refused" => broken("I3", format!("{why} for {:?}", letter.wish)),
                    _ => Ok(()),
                }
            }
        }
    }

    /// I22: a lease that was promised is in the log, for whom it was promised.
    fn check_lease(&self, run_id: RunId, epoch: Epoch, actor: &Actor) -> Judged {
        match self.of(&run_id).and_then(|seen| seen.leases.get(&epoch)) {
            Some(lease) if lease.owner == actor.id => Ok(()),
            other => {
                broken("I22", format!("lease {epoch} of {run_id} was promised to {}, the log has {other:?}", actor.id))
            }
        }
    }

    fn check_told(&mut self, step: &Moment, letter: &Letter, told: &abide_engine::Told) -> Judged {
        if let Some(key) = &letter.key {
            let run = self.keys.entry(format!("{}/{key}", letter.namespace)).or_insert_with(|| told.run_id.clone());
            if *run != told.run_id {
                return broken("I24", format!("the key {key} gave {run} and then {}", told.run_id));
            }
        }
        let Wish::Run { ask, .. } = &letter.wish else { return Ok(()) };
        let Some(holding) = ask.holding() else { return Ok(()) };
        let lease = self.of(&told.run_id).and_then(|seen| seen.leases.get(&holding.epoch));
        let Some(lease) = lease else {
            return broken("I13", format!("{ask:?} was accepted, and there never was such a lease"));
        };
        let ended_now = lease.ended.is_none_or(|ended| ended == step.number);
        match &told.reply {
            // A released body that repeats its call is told the same again.
            Reply::Replayed | Reply::Body { next: Next::Released, .. } => Ok(()),
            Reply::Beat { .. } | Reply::Effect { .. } | Reply::Body { .. } if ended_now => Ok(()),
            Reply::Done | Reply::Recorded if lease.ended == Some(step.number) => Ok(()),
            Reply::Done if matches!(**ask, Ask::Callback { .. }) && ended_now => Ok(()),
            reply => broken("I14", format!("{ask:?} was answered {reply:?}, its lease is {lease:?}")),
        }
    }

    /// One run, whole: its new events, its rows, what makes it findable, and the rules.
    fn check_run(&mut self, no: RunNo, step: &Moment) -> Judged {
        self.checks += 1;
        let stored = rows::stored(&self.db, no)?;
        let first = !self.runs.contains_key(&no);
        let mut seen = match self.runs.remove(&no) {
            Some(seen) => seen,
            None => Seen::new(no, stored.key.clone()),
        };
        let checked = self.check_seen(&mut seen, &stored, step, first);
        self.ids.insert(seen.key.run_id.clone(), no);
        self.runs.insert(no, seen);
        checked
    }

    fn check_seen(&mut self, seen: &mut Seen, stored: &rows::StoredRun, step: &Moment, first: bool) -> Judged {
        let before = seen.run.head.seq;
        let ended = seen.run.is_terminal();
        for record in log::events(&self.db, seen.no, before, seen.run.head.hash)? {
            self.events += 1;
            self.check_event(seen, &record, step, first)?;
        }
        if ended && seen.run.head.seq > before && stored.state != seen.run.head.state.map_or("", RunState::as_str) {
            return broken("I5", "a run that had ended went on");
        }
        seen.wake_at = stored.wake_at;
        seen.compare(stored)?;
        rows::check_found(&self.db, seen)?;
        if let Some(state) = seen.run.head.state {
            self.states.insert(state);
        }
        let whole = seen.with_liveness(stored);
        match invariant::broken(&whole, stored.wake_at, step.serving_since).first() {
            Some(violation) => broken(
                violation.rule,
                format!("{}: {}\n{}", seen.key.run_id, violation.what, log::story(&self.db, seen.no)),
            ),
            None => Ok(()),
        }
    }

    pub fn story(&self, no: RunNo) -> String {
        log::story(&self.db, no)
    }
}

fn waits(run: &Working, wanted: fn(&Wait) -> bool) -> usize {
    run.open().filter(|row| row.block.as_ref().is_some_and(|block| wanted(&block.wait))).count()
}

fn is_person(actor: &Actor) -> bool {
    actor.kind != ActorKind::System
}
