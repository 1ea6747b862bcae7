-- Every filter of a list is served by an index. What is seldom said is in none of them.

create index runs_by_failure on runs (namespace, failure_kind) where failure_kind is not null;
create index runs_by_region  on runs (namespace, data_region) where data_region is not null;

-- What waits for people, the most urgent first; what has no deadline comes last.
create index approvals_by_urgency on approvals (namespace, (until is null), until, since);
