-- What a row of the log, and of what is to be sent later, must not exceed: see ../postgresql/0008_limits.sql. SQLite has
-- no hash to check a slot with, and no roles: who may write to the file may write anything.

-- A time outside every calendar becomes the nearest one inside: never stays never, and long ago stays due.
update {schema}_scheduled
   set due_at = min(max(cast(due_at as integer), -2208988800000000), 253370764799999999)
 where typeof(due_at) <> 'integer' or due_at not between -2208988800000000 and 253370764799999999;

-- What is too large can't be sent at any time, and the log would not take it later.
insert into {schema}_outbox (id, topic, key, slot, type, payload, content_type, headers)
select id, topic, key, slot, type, payload, content_type, headers
  from {schema}_scheduled
 where length(payload) > 16777216 or length(cast(headers as blob)) > 65536 or length(cast(content_type as blob)) > 255
 order by due_at, number
on conflict (id) do nothing;
delete from {schema}_scheduled
 where length(payload) > 16777216 or length(cast(headers as blob)) > 65536 or length(cast(content_type as blob)) > 255;

create trigger if not exists {schema}_outbox_limits before insert on {schema}_outbox
 when length(new.payload) > 16777216
   or length(cast(new.headers as blob)) > 65536
   or length(cast(new.content_type as blob)) > 255
begin
    select raise(abort, 'postroad: payload has more than 16777216 bytes, headers more than 65536 or content_type more than 255');
end;

create trigger if not exists {schema}_scheduled_limits before insert on {schema}_scheduled
 when length(new.payload) > 16777216
   or length(cast(new.headers as blob)) > 65536
   or length(cast(new.content_type as blob)) > 255
begin
    select raise(abort, 'postroad: payload has more than 16777216 bytes, headers more than 65536 or content_type more than 255');
end;

create trigger if not exists {schema}_scheduled_due_at before insert on {schema}_scheduled
 when typeof(new.due_at) <> 'integer' or new.due_at not between -2208988800000000 and 253370764799999999
begin
    select raise(abort, 'postroad: due_at must be microseconds since 1970, of a time from 1900 to 9998');
end;

insert or ignore into {schema}_migrations (version) values (8);
