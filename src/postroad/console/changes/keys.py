"""Changes to keys: hold, release, skip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.admin import Count, Filter
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, command
from postroad.errors import NotFound
from postroad.stores.admin.names import suggestion
from postroad.wording import count, one_line

if TYPE_CHECKING:
    from postroad.admin import Admin

__all__ = ["CHANGES"]


async def _hold(admin: Admin, given: Given) -> Plan:
    key, sink = given.needed("key"), await given.sink(admin)
    found = await admin.preview_hold(sink, key)
    similar = "" if found.similar is None else f"; did you mean {found.similar!r}?"
    unknown = "" if found.known else f"No message has this key{similar or '.'}"
    waiting = f"{count(found.waiting, 'message')} of it not published yet"
    return Plan(
        would=f"key {one_line(key)!r} would be held at sink {sink!r}, with {waiting}",
        number=Count(1),
        thing="key",
        act=lambda by, _: admin.hold(sink, key, by),
        done=lambda _: f"key {one_line(key)!r} is held at sink {sink!r}",
        command=command("key", "hold", key, sink=sink),
        warning=unknown,
        undo=Link("Undo: release it", "do/release", {"sink": sink, "key": key}),
        back=_back(key),
    )


async def _release(admin: Admin, given: Given) -> Plan:
    key, sink = given.needed("key"), await given.sink(admin)
    held = [each.key for each in await admin.held_keys(sink)]
    if key not in held:
        raise NotFound(f"key {key!r} is not held at sink {sink!r}; {suggestion(key, held)}")
    return Plan(
        would=f"key {one_line(key)!r} would be released at sink {sink!r}: its messages are published in order",
        number=Count(1),
        thing="key",
        act=lambda by, _: admin.release(sink, key, by),
        done=lambda _: f"key {one_line(key)!r} is released at sink {sink!r}",
        command=command("key", "release", key, sink=sink),
        undo=Link("Undo: hold it again", "do/hold", {"sink": sink, "key": key}),
        back=_back(key),
    )


async def _skip_key(admin: Admin, given: Given) -> Plan:
    key, sink = given.needed("key"), await given.sink(admin)
    number = Count(await admin.preview_skip_key(sink, key))
    page = await admin.messages(Filter(sink=sink, key=key), 10)
    return Plan(
        would=f"{count(number.number, 'message')} of key {one_line(key)!r} would be skipped at sink {sink!r}",
        number=number,
        thing="message",
        nothing=f"no message of key {one_line(key)!r} is retrying, held or dead at sink {sink!r}",
        act=lambda by, expected: admin.skip_key(sink, key, by, expected=expected),
        done=lambda messages: f"skipped {messages} of key {one_line(key)!r}",
        command=command("key", "skip", key, sink=sink),
        warning="This can't be undone: they are never published there. If the key is held, it stays held.",
        sample=page.messages,
        back=_back(key),
    )


CHANGES: Final = (
    Change(name="hold", title="Hold a key", right=Right.OPERATE, plan=_hold),
    Change(name="release", title="Release a key", right=Right.OPERATE, plan=_release, reason_required=False),
    Change(name="skip-key", title="Skip the messages of a key", right=Right.ADMINISTER, plan=_skip_key),
)


def _back(key: str) -> Link:
    return Link("Back to the key", "key", {"key": key})
