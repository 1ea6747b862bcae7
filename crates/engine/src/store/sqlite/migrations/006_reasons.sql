-- What open runs wait for is counted off this index alone, without reading a run: so it has every column that is asked for.

create index runs_by_reason on runs (namespace, reason, ended_at) where ended_at is null and reason is not null;
