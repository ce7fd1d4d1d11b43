"""Reads take no pages from the kernel, and rows cause no search for garbage."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

READS = 1000
PROGRAM = f"""
import asyncio, resource, socket
from postroad.heap import keep_large_blocks

async def page_faults(reader, other):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({READS}):
        other.send(b"x")
        await reader.readexactly(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

async def main():
    one, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=one)
    await page_faults(reader, other)
    keep_large_blocks()
    print(await page_faults(reader, other))
    writer.close()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a habit of glibc")
def test_after_a_large_block_was_freed_reads_cause_no_page_faults() -> None:
    # Who has tuned malloc has chosen otherwise.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=env)
    assert int(ran.stdout) < READS / 10, "there are two for each read otherwise"


ROWS = 12_000
COLLECTIONS = f"""
import gc
from postroad.ops.process import run_in_loop

async def read() -> int:
    before = sum(each["collections"] for each in gc.get_stats())
    rows = [[] for _ in range({ROWS})]
    return sum(each["collections"] for each in gc.get_stats()) - before

CHOSEN = None
if CHOSEN:
    gc.set_threshold(CHOSEN)
print(run_in_loop(read())[0])
"""


def collections_while_reading(chosen: int | None = None) -> int:
    program = COLLECTIONS.replace("CHOSEN = None", f"CHOSEN = {chosen}")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_a_command_reads_pages_of_many_lanes_without_a_search_for_cyclic_garbage() -> None:
    assert collections_while_reading() <= 1, "what was imported before may make it due once"


def test_how_often_garbage_is_collected_is_left_as_the_application_has_chosen_it() -> None:
    assert collections_while_reading(chosen=500) >= ROWS // 500
