"""Asks a server for its TLS certificate, for `postroad doctor`: whether it is accepted, and until when it is valid."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

from postroad.findings import NotKnown

__all__ = ["ask_certificate"]


async def ask_certificate(host: str, port: int, context: ssl.SSLContext, seconds: float, *, fix: str) -> dict[str, Any]:
    """The fact `broker_certificate`. `fix` is what helps against one that is not accepted.

    Raises NotKnown when there is no TLS connection.
    """
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        return {"error": error.verify_message or str(error), "fix": fix}
    except (OSError, TimeoutError) as error:
        raise NotKnown(f"no TLS connection: {str(error) or 'it did not answer in time'}") from error
    certificate = writer.get_extra_info("peercert")
    writer.transport.abort()
    return _validity(certificate or {}, time.time())


def _validity(certificate: Any, now: float) -> dict[str, Any]:
    """Of a certificate as `ssl` decodes it; one that is not verified is not decoded."""
    if not certificate:
        return {"verified": False}
    until = certificate["notAfter"]
    return {"verified": True, "until": until, "seconds_left": ssl.cert_time_to_seconds(until) - now}
