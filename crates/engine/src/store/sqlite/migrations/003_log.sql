-- What one commit says of a run becomes one row: an event took a row and an index entry of its own before.

create table run_log (
    entry_no integer primary key,
    run_no   integer not null,
    -- Of the first event in it.
    seq      integer not null,
    -- [[seq, v, at, actor type, actor id, cause, layer, kind, from, to, step, attempt, payload, evidence, hash], …]
    events   text    not null
) strict;

-- Put together as text, so that every payload keeps its bytes: their digests are in the chain.
insert into run_log (run_no, seq, events)
select run_no, seq,
       '[[' || seq || ',' || v || ',' || at || ',' || json_quote(actor_type) || ',' || json_quote(actor_id) || ','
       || json_quote(cause) || ',' || json_quote(layer) || ',' || json_quote(kind) || ',' || json_quote(from_state) || ','
       || json_quote(to_state) || ',' || json_quote(step_id) || ',' || coalesce(attempt, 'null') || ',' || payload || ','
       || coalesce(evidence, '[]') || ',"' || lower(hex(hash)) || '"]]'
from   run_events order by event_no;

-- Its triggers, which let no event be deleted, go with it.
drop table run_events;

create unique index run_log_of on run_log (run_no, seq);

create trigger run_log_never_changes before update on run_log
begin select raise(abort, 'events never change'); end;
create trigger run_log_stays before delete on run_log
    when not exists (select 1 from archiving where run_no = old.run_no)
begin select raise(abort, 'events are deleted only when their run is archived'); end;

-- For people: one row an event. `entry` is the first event of the row it stands in.
create view run_events as
select run_no,
       run_log.seq     as entry,
       value ->> '$[0]'  as seq,
       value ->> '$[1]'  as v,
       value ->> '$[2]'  as at,
       value ->> '$[3]'  as actor_type,
       value ->> '$[4]'  as actor_id,
       value ->> '$[5]'  as cause,
       value ->> '$[6]'  as layer,
       value ->> '$[7]'  as kind,
       value ->> '$[8]'  as from_state,
       value ->> '$[9]'  as to_state,
       value ->> '$[10]' as step_id,
       value ->> '$[11]' as attempt,
       value -> '$[12]'  as payload,
       value -> '$[13]'  as evidence,
       value ->> '$[14]' as hash
from   run_log, json_each(events);
