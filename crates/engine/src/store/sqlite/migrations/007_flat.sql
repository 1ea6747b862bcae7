-- Steps and payloads are appended, and found by a small index. Without a rowid, rows of that size stand in the inner pages
-- of their table too: a page led to five others instead of hundreds, and a new row split what lay there.

create table steps_appended (
    step_no           integer primary key,
    run_no            integer not null,
    path              text    not null,
    state             text    not null,
    open              integer not null,
    row               text    not null,
    -- Liveness: beside the log, outside fold and hash.
    expires_at        integer,
    last_heartbeat_at integer,
    progress          text
) strict;
insert into steps_appended (run_no, path, state, open, row, expires_at, last_heartbeat_at, progress)
select run_no, path, state, open, row, expires_at, last_heartbeat_at, progress from steps order by run_no, path;
drop table steps;
alter table steps_appended rename to steps;
create unique index steps_of on steps (run_no, path);
create index steps_open on steps (run_no) where open = 1;

create table payloads_appended (
    payload_no integer primary key,
    run_no     integer not null,
    name       text    not null,
    bytes      blob    not null
) strict;
insert into payloads_appended (run_no, name, bytes)
select run_no, name, bytes from payloads order by run_no, name;
drop table payloads;
alter table payloads_appended rename to payloads;
create unique index payloads_of on payloads (run_no, name);
