-- In a row of the log, when, who and why stand in its first event, and are null in those after it that say the same. Only
-- the last event has its hash, which covers the others. Rows that were written before say everything in every event.

drop view run_events;
create view run_events as
select run_no,
       run_log.seq     as entry,
       value ->> '$[0]'  as seq,
       coalesce(value ->> '$[1]', events ->> '$[0][1]') as v,
       coalesce(value ->> '$[2]', events ->> '$[0][2]') as at,
       coalesce(value ->> '$[3]', events ->> '$[0][3]') as actor_type,
       coalesce(value ->> '$[4]', events ->> '$[0][4]') as actor_id,
       coalesce(value ->> '$[5]', events ->> '$[0][5]') as cause,
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
