"""What codecs did to a payload, in words, for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.codecs.encryption import key_id_of
from postroad.message import CONTENT_ENCODING, DATAREF, ENCRYPTION
from postroad.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["by_codecs"]


def by_codecs(headers: Mapping[str, str]) -> str:
    """What codecs did to the payload of a message with these headers, in words; empty: nothing."""
    done = []
    if encoding := headers.get(CONTENT_ENCODING):
        done.append(f"compressed ({one_line(encoding, 30)})")
    if encryption := headers.get(ENCRYPTION):
        key = key_id_of(encryption)
        done.append("encrypted" if key is None else f"encrypted with the key {one_line(key, 80)}")
    if any(name.endswith(DATAREF) for name in headers):  # a broker delivers it as ce-dataref, ce_dataref, …
        done.append("stored elsewhere")
    return ", ".join(done)
