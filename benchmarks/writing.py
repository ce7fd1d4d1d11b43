"""How fast 16 writers commit to the log with something in their way: pgbench, one INSERT per transaction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from postroad.stores.postgresql_naps import marks_of

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

WRITERS = 16

NO_TRIGGER = "alter table postroad.outbox disable trigger wake_naps"
NO_NAPS = "delete from postroad.naps"
NOTIFY_ALWAYS = """
create or replace function notify_always() returns trigger language plpgsql as
$$ begin perform pg_notify('always', ''); return null; end $$;
create trigger notify_always after insert on postroad.outbox for each statement execute function notify_always()
"""
AS_BEFORE = """
alter table postroad.outbox enable trigger wake_naps;
drop trigger if exists notify_always on postroad.outbox;
delete from postroad.naps
"""


# A process that is always there and reads no notification.
CHECKPOINTER = "(select pid from pg_stat_activity where backend_type = 'checkpointer')"


def naps(first_slot: int, last_slot: int, listener: str = "pg_backend_pid()") -> str:
    """A nap on these slots is always there; the process that listened for it has just been killed."""
    marks = marks_of(first_slot, last_slot)
    return f"""
        select setval('postroad.napping', last_value | ({marks})) from postroad.napping;
        insert into postroad.naps (until, first_slot, last_slot, marks, channel, listener)
        values (now() + interval '1 day', {first_slot}, {last_slot}, {marks}, 'postroad', {listener})"""


class Way(msgspec.Struct, frozen=True):
    """What is in the writers' way, and in which slots they write."""

    name: str
    before: str
    slots: tuple[int, int] = (0, 1023)


def rate(server: PostgreSQL, url: str, way: Way, seconds: int) -> float:
    """Transactions per second."""
    script = server.folder / "insert.sql"
    script.write_text(
        f"\\set slot random({way.slots[0]}, {way.slots[1]})\n"
        "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers)\n"
        "values (gen_random_uuid(), 'order.placed', :slot, 'order.placed', convert_to(repeat('x', 170), 'UTF8'),\n"
        "        'application/json', '{}');\n"
    )
    script.chmod(0o644)
    server.psql(url, AS_BEFORE)
    server.psql(url, way.before)
    server.psql(url, "checkpoint")
    options = ("-n", "-M", "prepared", "-c", str(WRITERS), "-j", "2", "-T", str(seconds), "-f", str(script))
    try:
        output = server.run("pgbench", *options, "-d", url)
    finally:
        server.psql(url, AS_BEFORE)
    found = re.search(r"tps = ([0-9.]+)", output)
    assert found is not None, output
    return float(found[1])
