-- What consumers have processed, so that a message which comes again has no second effect.
-- Nothing here touches the log: applications add while this runs.

-- A row is written in the handler's own transaction: it is there when the effect is there, and not otherwise.
-- Ids are texts, for other producers' need not be UUIDs. In the order of their bytes, which is the cheapest to compare.
create table if not exists {schema}.inbox (
    processed_at timestamptz not null default now(),
    consumer     text        collate "C" not null check (octet_length(consumer) between 1 and 255),
    id           text        collate "C" not null check (octet_length(id) between 1 and 1024),
    type         text        not null check (octet_length(type) <= 255),
    primary key (consumer, id)
);
create index if not exists inbox_processed_at on {schema}.inbox (consumer, processed_at);

-- Only trouble gets a row: messages whose handler failed, that came again, or that were given up.
-- It is written in transactions of its own, so it outlives the handler's roll-back and the death of its process.
create table if not exists {schema}.inbox_attempts (
    attempts   integer     not null default 0 check (attempts >= 0),
    crashes    integer     not null default 0 check (crashes >= 0), -- attempts that ended with their process
    running    boolean     not null default false,                  -- an attempt has begun and has not ended
    changed_at timestamptz not null default clock_timestamp(),
    dead_at    timestamptz,                                         -- when it went to the dead-letter queue
    consumer   text        collate "C" not null check (octet_length(consumer) between 1 and 255),
    id         text        collate "C" not null check (octet_length(id) between 1 and 1024),
    type       text        not null check (octet_length(type) <= 255),
    error      text        check (length(error) <= 2000),
    primary key (consumer, id)
);

insert into {schema}.migrations (version) values (6) on conflict do nothing;
