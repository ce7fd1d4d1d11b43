"""claim_check: messages of 1 MB in the log, and elsewhere: in a folder, and behind the interface of S3.

Adding is `add_many` of ten messages per transaction, as in `compression`. Draining is the relay's work alone: consumers
read what is stored elsewhere. s3proxy shares the machine with the database.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

from benchmarks.compression import Way, describe, in_turns, order, times_as_many
from benchmarks.sections import Plan, Section
from postroad.codecs import ClaimCheck
from tests.services.s3 import S3
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

PAYLOAD_BYTES = 1024 * 1024
INLINE, FOLDER, BUCKET = "in the log (lz4)", "claim check: a folder", "claim check: S3 (s3proxy)"


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(500, quick=20)
    header = ["", "added/s", "table", "drained/s", "CPU each: process + server"]
    section = Section(
        "claim_check", f"Adding and draining {messages:,} messages of 1 MB, in the log and elsewhere", header
    )
    events = [order(number, PAYLOAD_BYTES) for number in range(10)]
    with ExitStack() as stack:
        rounds = in_turns(server, plan, _ways(section, stack), events, messages)
    describe(section, rounds)
    for name in list(rounds)[1:]:
        added, drained = times_as_many(rounds, name, INLINE)
        section.notes.append(f"{name}: {added:.1f} times as many added as in the log, {drained:.1f} times drained.")
    return section


def _ways(section: Section, stack: ExitStack) -> dict[str, Way]:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    ways = {INLINE: Way("lz4"), FOLDER: Way("lz4", [ClaimCheck(f"file://{folder}")])}
    try:
        server = S3()
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return ways
    stack.enter_context(server)
    stack.enter_context(patch.dict(os.environ, server.environment))
    return ways | {BUCKET: Way("lz4", [ClaimCheck(f"s3://{server.create_bucket()}")])}
