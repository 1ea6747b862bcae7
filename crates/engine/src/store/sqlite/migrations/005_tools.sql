-- Numbers are kept by tool, too; the tool '' stands for a whole workflow.

create table insights_by_tool (
    namespace   text    not null,
    workflow_id text    not null,
    tool        text    not null,
    metric      text    not null,
    of          text    not null,
    count       integer not null,
    histogram   text,
    primary key (namespace, workflow_id, tool, metric, of)
) strict, without rowid;

insert into insights_by_tool
select namespace, workflow_id, '', metric, of, count, histogram from insights
where  metric not in ('issued', 'issued_again', 'auth_blocked');

-- These were counted by what did or broke it, before there was a place for that.
insert into insights_by_tool
select namespace, workflow_id, of,
       case metric when 'auth_blocked' then 'entered' else metric end,
       case metric when 'auth_blocked' then 'waiting_on_auth' else '' end,
       count, histogram
from   insights
where  metric in ('issued', 'issued_again', 'auth_blocked') and of <> '';

drop table insights;
alter table insights_by_tool rename to insights;
