"""Asks a server what a confirm of it means, and whether it can give the confirms that the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.base import Durability
from postroad.brokers.redis.connection import LinkLost, ReplyError
from postroad.brokers.redis.resp import command
from postroad.brokers.redis.scripts import ADD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.brokers.redis.connection import Connection
    from postroad.brokers.redis.settings import PublisherSettings

__all__ = ["durability", "examine"]

_CONFIG: Final = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
_MEANINGS: Final = {
    "always": "written to the append-only file and synced to disk (appendfsync always)",
    "everysec": "in the memory of the server, and on its disk about a second later (appendfsync everysec)",
    "no": "in the memory of the server, and on its disk when the operating system writes it (appendfsync no)",
    "off": "in the memory of the server, and on its disk with the next snapshot, if it makes any (appendonly no)",
    "": "in the memory of the server; its user may not ask whether and when it is written to disk (CONFIG GET)",
}
_WEAK: Final = {
    "everysec": "appendfsync is everysec: if the machine crashes, confirmed messages of about two seconds are lost; "
    "set appendfsync always on the server, or the setting fsync",
    "no": "appendfsync is no: if the machine crashes, confirmed messages of about half a minute are lost; set "
    "appendfsync always on the server, or everysec and the setting fsync",
    "off": "appendonly is no: when the server is restarted, confirmed messages are lost; set appendonly yes",
}


async def examine(connection: Connection, settings: PublisherSettings, seconds: float) -> Durability:
    """What a confirm means. Raises LinkLost if the server can't take messages, or can't confirm as it should."""
    questions = [command("INFO", "replication"), command("EVAL", ADD, 0, 0)]
    questions += [command("CONFIG", "GET", name) for name in _CONFIG]
    if settings.fsync:
        questions.append(command("WAITAOF", 1, 0, 1))
    trims = _trims(settings)
    questions += [command(*each) for each in trims]
    answers = await connection.ask_all(questions, seconds)
    replication, script, *others = answers[: len(answers) - len(trims)]
    refused = [
        str(words[0]).lower()
        for words, answer in zip(trims, answers[len(answers) - len(trims) :], strict=True)
        if isinstance(answer, ReplyError) and "permissions to run" in str(answer)
    ]
    facts = _info(replication)
    if isinstance(script, ReplyError):
        raise LinkLost(f"it does not run scripts, which keep messages of a key in order: {script}; grant +eval")
    if facts.get("role") == "slave":
        raise LinkLost("it is a replica, which takes no messages; use the address of its master")
    if int(facts.get("connected_slaves", settings.replicas)) < settings.replicas:
        raise LinkLost(
            f"replicas is {settings.replicas}, and the server has {facts['connected_slaves']}: no message could be "
            "confirmed"
        )
    if settings.fsync and isinstance(others[-1], ReplyError):
        raise LinkLost(f"fsync is true, and the server can't confirm that it has written to disk: {others[-1]}")
    for name, answer in zip(_CONFIG, others, strict=False):
        if isinstance(answer, list) and len(answer) == 2:
            facts[name] = answer[1].decode()
    if settings.fsync and facts.get("appendfsync") == "no":  # WAITAOF waits for a sync, and does not cause one
        raise LinkLost(
            "fsync is true, and the server leaves it to the operating system when it writes to disk (appendfsync no), "
            "so no message could be confirmed; set appendfsync everysec or always"
        )
    return durability(facts, settings, refused)


def _trims(settings: PublisherSettings) -> list[tuple[str | int, ...]]:
    """What trimming asks of a stream, in a form that deletes nothing: only the user's rights matter, not the stream."""
    if settings.trim != "acked" or (settings.max_length is None and settings.max_age is None):
        return []
    stream = settings.stream
    found: list[tuple[str | int, ...]] = [
        ("XINFO", "GROUPS", stream),
        ("XPENDING", stream, "postroad"),
        ("XTRIM", stream, "MINID", "~", 0),
    ]
    if settings.max_length is not None:
        found.append(("XLEN", stream))
    if settings.max_age is not None:
        found.append(("TIME",))
    return found


def durability(facts: Mapping[str, str], settings: PublisherSettings, refused: Sequence[str] = ()) -> Durability:
    """What a confirm means, given the server's settings and state as far as they are known. `refused`: the commands for
    trimming that the user may not run.
    """
    policy = "off" if facts.get("appendonly") == "no" else facts.get("appendfsync", "")
    meaning = _MEANINGS[policy]
    warnings = []
    if settings.fsync:
        meaning = "written to the append-only file and synced to disk (fsync)"
    elif policy in _WEAK:
        warnings.append(_WEAK[policy])
    if settings.replicas:
        meaning += f", and by {settings.replicas} replicas" + (", on their disks" if settings.fsync else "")
    elif int(facts.get("connected_slaves", 0)) > 0:
        warnings.append(
            "replication is asynchronous: if a replica takes over, messages that were confirmed just before are lost; "
            "the setting replicas makes that less likely"
        )
    if facts.get("maxmemory", "0") != "0" and facts.get("maxmemory-policy", "").startswith("allkeys"):
        warnings.append(
            f"maxmemory-policy is {facts['maxmemory-policy']}: Redis may delete whole streams when its memory is full; "
            "set noeviction"
        )
    limit = f"max_age is {settings.max_age}" if settings.max_length is None else f"max_length is {settings.max_length}"
    if refused:
        warnings.append(
            f"{limit}, and nothing is ever deleted, because the user may not run {', '.join(refused)}; grant "
            + " ".join(f"+{name}" for name in refused)
        )
    if settings.trim == "all" and (settings.max_length is not None or settings.max_age is not None):
        warnings.append(
            f"trim is all and {limit}: Redis deletes older entries, also those that no consumer has read; set "
            "trim = acked"
        )
    return Durability(meaning, tuple(warnings))


def _info(answer: Any) -> dict[str, str]:
    """The answer to INFO, empty if the user may not ask."""
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
