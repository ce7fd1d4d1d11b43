"""`make audit`: known vulnerabilities in the versions of constraints.txt, as pip-audit finds them.

What could not be looked up was not audited, and is never reported as sound: without the network the whole audit is
skipped, and says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = ("pip_audit", "--requirement", "constraints.txt", "--disable-pip", "--require-hashes", "--format", "json")


def main() -> int:
    ran = subprocess.run([sys.executable, "-m", *COMMAND], capture_output=True, text=True, check=False)
    try:
        found = json.loads(ran.stdout)["dependencies"]
    except ValueError:
        print(f"SKIPPED: pip-audit could not ask for vulnerabilities: {last_line(ran.stderr)}")
        return 0
    words, code = verdict(found)
    print(words)
    return code


def verdict(dependencies: list[dict[str, Any]]) -> tuple[str, int]:
    """What to say about pip-audit's report, and the exit code."""
    skipped = [each["name"] for each in dependencies if "skip_reason" in each]
    audited = [each for each in dependencies if "skip_reason" not in each]
    ill = [each for each in audited if each["vulns"]]
    lines = [f"{each['name']} {each['version']}: {', '.join(vuln['id'] for vuln in each['vulns'])}" for each in ill]
    if not audited:
        return f"SKIPPED: none of {len(skipped)} packages could be looked up; is the network there?", 0
    if skipped:
        lines.append(f"NOT AUDITED: {', '.join(skipped)}")
    lines.append(f"{len(audited)} packages audited, {len(ill)} with known vulnerabilities, {len(skipped)} not found")
    return "\n".join(lines), 1 if ill or skipped else 0


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no output"


if __name__ == "__main__":
    if not Path("constraints.txt").exists():
        sys.exit("run it in the project's folder: make audit")
    sys.exit(main())
