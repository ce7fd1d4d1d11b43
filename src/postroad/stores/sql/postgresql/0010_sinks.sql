-- What is known of a sink beside its lanes. Nothing here touches the log: applications add while this runs.

-- One row per sink. Its row is locked by everything that gives the sink a destination, takes a lane for one, or removes
-- the sink, so that these never happen at once.
create table if not exists {schema}.sinks (
    served_at   timestamptz not null default clock_timestamp(), -- when a relay was last started for it, or stopped
    sink        text        not null primary key,
    destination text        -- where its relays deliver to, without secrets; null: made by a version that kept none
);
insert into {schema}.sinks (sink)
select distinct sink from {schema}.lanes
on conflict do nothing;

-- A relay from before would deliver anywhere: it is refused from now on. Applications are not asked.
update {schema}.installation set min_client = greatest(min_client, 10);
insert into {schema}.migrations (version) values (10) on conflict do nothing;
