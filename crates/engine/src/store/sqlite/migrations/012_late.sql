-- A task may answer late more than once: a result or a failure, and a receipt for each of its effects. `v` says how `output`
-- is written: 1, the output itself; 2, the report as JSON. An answer of version 1 does not know its lease.

create table late_answers_of_leases (
    run_no integer not null,
    path   text    not null,
    n      integer not null,
    worker text    not null,
    epoch  integer not null,
    v      integer not null,
    output blob    not null,
    at     integer not null,
    primary key (run_no, path, n)
) strict, without rowid;
insert into late_answers_of_leases select run_no, path, 0, worker, 0, 1, output, at from late_answers;
drop table late_answers;
alter table late_answers_of_leases rename to late_answers;

-- A canceled run tells now what it waits for: each is looked at once.
update runs set wake_at = updated_at where state = 'cancel_requested' and (wake_at is null or wake_at > updated_at);
