"""RECEIVE: receive → begin → inbox → decode → handler → commit → ack. A message that comes twice has one effect."""

from __future__ import annotations

from postroad.consumer.consumer import Consumer
from postroad.consumer.handler_transaction import following
from postroad.consumer.model import Summary

__all__ = ["Consumer", "Summary", "following"]
