"""Codecs: what is done to payloads between `Outbox.add` and a handler. Compressed, encrypted, stored elsewhere.

    codecs = [Zstd(above="4KB"), Encrypt(KeyRing({"2026-11": key}, current="2026-11")), ClaimCheck("s3://bucket/payloads")]
    outbox = Outbox(source="/shop", codecs=codecs)
    consumer = Consumer("amqp://localhost", name="stock", begin=Session.begin, codecs=codecs)

The libraries that they need are imported when a codec is made.
"""

from __future__ import annotations

from postroad.codecs.base import About, Codec
from postroad.codecs.chain import decoded
from postroad.codecs.claim_check import ClaimCheck
from postroad.codecs.compression import Zlib, Zstd
from postroad.codecs.encryption import Encrypt
from postroad.codecs.keys import Key, KeyPerSubject, KeyRing, Keys, Missing
from postroad.codecs.payload_store import PayloadStore, StoredPayload, payload_store
from postroad.shredded import ShreddedPayload

__all__ = [
    "About",
    "ClaimCheck",
    "Codec",
    "Encrypt",
    "Key",
    "KeyPerSubject",
    "KeyRing",
    "Keys",
    "Missing",
    "PayloadStore",
    "ShreddedPayload",
    "StoredPayload",
    "Zlib",
    "Zstd",
    "decoded",
    "payload_store",
]
