-- Runs, their logs and everything that is found through them. Times are integers: microseconds UTC.
-- Rows of one run lie together (run_no is given in the order of the starts), and what changes at every step is in no index.

create table runs (
    run_no           integer primary key,
    namespace        text    not null,
    run_id           text    not null,
    workflow_id      text    not null,
    workflow_version integer not null,
    -- 'active' while the run is queued or running, else its state: an index entry moves when a run parks or ends.
    bucket           text    not null,
    state            text    not null,
    seq              integer not null,
    step_id          text,
    reason           text,
    failure_kind     text,
    owner_id         text,
    data_region      text,
    parent_run       text,
    origin_run       text,
    unique_value     text,
    created_at       integer not null,
    updated_at       integer not null,
    ended_at         integer,
    wake_at          integer,
    pinned           integer not null default 0,
    head             text    not null
) strict;
create unique index runs_by_id        on runs (run_id, namespace);
create index        runs_by_bucket    on runs (namespace, bucket);
create index        runs_by_workflow  on runs (namespace, workflow_id);
create index        runs_to_wake      on runs (wake_at) where wake_at is not null;
create unique index runs_unique_open  on runs (namespace, workflow_id, unique_value)
    where unique_value is not null and ended_at is null;
create index        runs_by_parent    on runs (parent_run) where parent_run is not null;
create index        runs_by_origin    on runs (origin_run) where origin_run is not null;
create index        runs_by_owner     on runs (namespace, owner_id) where owner_id is not null;

-- What was said at the start never changes, so it is not rewritten with the head.
create table run_starts (
    run_no  integer primary key,
    started text not null
) strict;

create table run_labels (
    namespace text    not null,
    name      text    not null,
    value     text    not null,
    run_no    integer not null,
    primary key (namespace, name, value, run_no)
) strict, without rowid;

-- Appended in the order of the commits: a batch fills pages instead of splitting one page per run. The index that finds
-- the events of a run is small enough to stay where they were.
create table run_events (
    event_no   integer primary key,
    run_no     integer not null,
    seq        integer not null,
    v          integer not null,
    at         integer not null,
    actor_type text    not null,
    actor_id   text    not null,
    cause      text    not null,
    layer      text    not null,
    kind       text    not null,
    from_state text,
    to_state   text,
    step_id    text,
    attempt    integer,
    payload    text    not null,
    evidence   text,
    hash       blob    not null
) strict;
create unique index run_events_of on run_events (run_no, seq);

-- Runs that are being moved to the archive; only their events may be deleted, and only with them.
create table archiving (run_no integer primary key) strict;

create trigger run_events_never_change before update on run_events
begin select raise(abort, 'events never change'); end;
create trigger run_events_stay before delete on run_events
    when not exists (select 1 from archiving where run_no = old.run_no)
begin select raise(abort, 'events are deleted only when their run is archived'); end;

create table steps (
    run_no            integer not null,
    path              text    not null,
    state             text    not null,
    open              integer not null,
    row               text    not null,
    -- Liveness: beside the log, outside fold and hash.
    expires_at        integer,
    last_heartbeat_at integer,
    progress          text,
    primary key (run_no, path)
) strict, without rowid;
create index steps_open on steps (run_no) where open = 1;

create table payloads (
    run_no integer not null,
    name   text    not null,
    bytes  blob    not null,
    primary key (run_no, name)
) strict, without rowid;

-- Tasks that anybody may claim: priority, then age. Rows go when a task is claimed or taken back.
create table ready_tasks (
    namespace text    not null,
    queue     text    not null,
    handler   text    not null,
    rank      integer not null,
    issued_at integer not null,
    run_no    integer not null,
    path      text    not null,
    run_id    text    not null,
    body      integer not null,
    primary key (namespace, queue, handler, rank, issued_at, run_no, path)
) strict, without rowid;

create table connection_waits (
    namespace text    not null,
    tool      text    not null,
    account   text    not null,
    run_no    integer not null,
    path      text    not null,
    -- 1: the connection was reconnected and the run has not heard of it yet.
    released  integer not null default 0,
    primary key (namespace, tool, account, run_no, path)
) strict, without rowid;
create index connection_waits_released on connection_waits (run_no) where released = 1;

create table connections (
    namespace      text    not null,
    tool           text    not null,
    account        text    not null,
    generation     integer not null,
    reconnected_at integer,
    broken         integer not null,
    primary key (namespace, tool, account)
) strict, without rowid;

-- Decisions that people have not made yet.
create table approvals (
    namespace text    not null,
    run_no    integer not null,
    path      text    not null,
    since     integer not null,
    until     integer,
    primary key (namespace, run_no, path)
) strict, without rowid;

create table callbacks (
    token_hash blob    primary key,
    run_no     integer not null,
    path       text    not null
) strict, without rowid;
create index callbacks_by_run on callbacks (run_no);

-- What workers said after their lease was over: the first answer of each task.
create table late_answers (
    run_no integer not null,
    path   text    not null,
    worker text    not null,
    output text    not null,
    at     integer not null,
    primary key (run_no, path)
) strict, without rowid;

-- Messages between runs that wait to be applied.
create table inbox (
    n          integer primary key,
    namespace  text    not null,
    target     text    not null,
    source     text    not null,
    source_seq integer not null,
    source_n   integer not null,
    message    text    not null
) strict;
create unique index inbox_once on inbox (namespace, target, source, source_seq, source_n);

create table definitions (
    namespace   text    not null,
    workflow_id text    not null,
    version     integer not null,
    hash        blob    not null,
    created_at  integer not null,
    document    text    not null,
    primary key (namespace, workflow_id, version)
) strict, without rowid;

create table idempotency_keys (
    namespace text    not null,
    key       text    not null,
    digest    blob    not null,
    at        integer not null,
    answer    text    not null,
    primary key (namespace, key)
) strict, without rowid;

create table workers (
    namespace    text    not null,
    queue        text    not null,
    worker       text    not null,
    handlers     text,
    last_poll_at integer not null,
    primary key (namespace, queue, worker)
) strict, without rowid;

-- One row per commit: by it an unknown outcome is looked up, and readers of everything find what it touched.
create table batches (
    batch   integer primary key,
    at      integer not null,
    touched blob    not null
) strict;

create table serving (
    one     integer primary key check (one = 1),
    since   integer not null,
    last_at integer not null
) strict;

create table archived_runs (
    run_no      integer primary key,
    namespace   text    not null,
    run_id      text    not null,
    workflow_id text    not null,
    state       text    not null,
    created_at  integer not null,
    ended_at    integer not null,
    archived_at integer not null,
    size        integer not null,
    bundle      blob    not null
) strict;
create unique index archived_by_id on archived_runs (run_id, namespace);

create table insights (
    namespace   text    not null,
    workflow_id text    not null,
    metric      text    not null,
    of          text    not null,
    count       integer not null,
    histogram   text,
    primary key (namespace, workflow_id, metric, of)
) strict, without rowid;
create table insights_position (one integer primary key check (one = 1), batch integer not null) strict;
