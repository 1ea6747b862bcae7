-- What waits between runs and what came too late is stored as bytes, so that it can be sealed.

create table inbox_of_bytes (
    n          integer primary key,
    namespace  text    not null,
    target     text    not null,
    source     text    not null,
    source_seq integer not null,
    source_n   integer not null,
    message    blob    not null
) strict;
insert into inbox_of_bytes
select n, namespace, target, source, source_seq, source_n, cast(message as blob) from inbox;
drop table inbox;
alter table inbox_of_bytes rename to inbox;
create unique index inbox_once on inbox (namespace, target, source, source_seq, source_n);

create table late_answers_of_bytes (
    run_no integer not null,
    path   text    not null,
    worker text    not null,
    output blob    not null,
    at     integer not null,
    primary key (run_no, path)
) strict, without rowid;
insert into late_answers_of_bytes select run_no, path, worker, cast(output as blob), at from late_answers;
drop table late_answers;
alter table late_answers_of_bytes rename to late_answers;
