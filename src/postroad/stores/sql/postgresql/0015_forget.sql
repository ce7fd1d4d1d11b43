-- Forgetting a key. Lines can only be added to the audit, so the one change that it knows is a function of its own. It asks
-- for a line about the forgetting that the same role has written in the same transaction.

create or replace function {schema}.forget_in_audit(key text, line bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
begin
    if not exists (select from {schema}.audit
                    where number = $2 and command = 'forget' and role = session_user and at = now()) then
        raise exception 'postroad: line % of the audit does not say that this transaction forgets something', $2;
    end if;
    update {schema}.audit
       set arguments = jsonb_set(arguments::jsonb, '{key}', '"(forgotten)"')::json,
           reason = case when reason is not null then '(forgotten)' end
     where arguments ->> 'key' = $1;
end
$$;
revoke all on function {schema}.forget_in_audit(text, bigint) from public;

insert into {schema}.migrations (version) values (15) on conflict do nothing;
