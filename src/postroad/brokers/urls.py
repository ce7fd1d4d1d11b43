"""The URLs of brokers, checked part by part. Errors do not quote a URL, because a password may be in the wrong place.
Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from postroad.errors import InvalidSetting
from postroad.kinds import is_url

if TYPE_CHECKING:
    from collections.abc import Collection
    from urllib.parse import SplitResult

__all__ = ["check_hosts", "split_url", "with_port"]


def split_url(url: str, schemes: Collection[str], options: Collection[str], example: str) -> SplitResult:
    """The parts of a URL with one of these schemes, and no other options. Raises InvalidSetting, which ends with
    `example`.
    """
    if not is_url(url):
        raise InvalidSetting(
            "url can't be split into its parts (it is not shown because it may hold a password); percent-encode "
            f"special characters of user and password: / is %2F, @ is %40, : is %3A, # is %23, ? is %3F; {example}"
        )
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        raise InvalidSetting(f"url does not begin with {' or '.join(f'{each}://' for each in schemes)}; {example}")
    for option, _ in parse_qsl(parts.query, keep_blank_values=True):
        if option not in options:
            raise InvalidSetting(f"url has the option {option!r}; it may have {', '.join(options)}")
    return parts


def check_hosts(parts: SplitResult, example: str, *, destination: str) -> None:
    """Check that it names hosts, separated by commas, each with or without a port, and nothing behind them. What
    `destination` names is a setting of its own, and belongs into no URL.
    """
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not all(re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:[0-9]{1,5})?", host) for host in hosts):
        raise InvalidSetting(f"url names no host, or one that is none; {example}")
    if any(not 0 < int(port[1]) < 65_536 for host in hosts if (port := re.search(r":([0-9]+)$", host))):
        raise InvalidSetting(f"url has a port that is not from 1 to 65535; {example}")
    if parts.path not in {"", "/"}:
        raise InvalidSetting(f"url has a path behind its hosts; the {destination} is a setting of its own; {example}")


def with_port(host: str, default: int) -> str:
    """The host with its port, or with the default one."""
    return host if re.search(r":[0-9]+$", host) else f"{host}:{default}"
