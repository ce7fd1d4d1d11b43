-- Forgetting a key. Operators may only add to the audit, so the one change that it knows is a function of its own.

create or replace function {schema}.forget_in_audit(key text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
declare
    changed bigint;
begin
    update {schema}.audit
       set arguments = pg_catalog.jsonb_set(arguments::jsonb, '{key}', '"(forgotten)"')::json,
           reason = case when reason is not null then '(forgotten)' end
     where arguments ->> 'key' = $1;
    get diagnostics changed = row_count;
    return changed;
end
$$;
revoke all on function {schema}.forget_in_audit(text) from public;

insert into {schema}.migrations (version) values (15) on conflict do nothing;
