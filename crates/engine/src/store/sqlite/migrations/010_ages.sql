-- What is old is found without reading the rest, so that it can be forgotten while others write.

create index idempotency_keys_by_age on idempotency_keys (at);
create index workers_by_age          on workers (last_poll_at);
