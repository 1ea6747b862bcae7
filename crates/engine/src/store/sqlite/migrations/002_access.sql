-- Who may come in: keys and one-time links. Both are stored as hashes only.

create table api_keys (
    key_id       text    primary key,
    namespace    text    not null,
    hash         blob    not null,
    grant_       text    not null,
    created_at   integer not null,
    expires_at   integer,
    revoked_at   integer,
    last_used_at integer
) strict, without rowid;

create table approval_links (
    token_hash blob    primary key,
    namespace  text    not null,
    run_id     text    not null,
    path       text    not null,
    whom       text    not null,
    groups     text    not null,
    expires_at integer not null,
    used_at    integer
) strict, without rowid;
