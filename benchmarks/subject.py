"""What a measured process does beside its work: say that it is ready, wait for the word, and report on itself.

Everything that is measured runs in a process of its own, ours and others' alike, so that memory and processor time are
its own. Only the standard library is used here: peers run in an environment without postroad.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path


def wait_for_go() -> float:
    """Everything is prepared; begin when the other side says so. The processor time that was used until then."""
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    return _cpu_seconds()


def report(*, messages: int, seconds: float, settings: str, starting_cpu_seconds: float = 0.0) -> None:
    """Say what was done, in one line of JSON."""
    done = {
        "messages": messages,
        "seconds": seconds,
        "cpu_seconds": _cpu_seconds(),
        "starting_cpu_seconds": starting_cpu_seconds,
        "peak_bytes": peak_bytes(),
        "settings": settings,
    }
    print(json.dumps(done), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
    """The most memory that this process ever had resident.

    Linux lets a child inherit its parent's ru_maxrss, so the kernel's own high-water mark is asked for first.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024
