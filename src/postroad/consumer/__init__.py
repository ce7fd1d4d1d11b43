"""RECEIVE: deliver → begin → first_time → decode → handler → commit → ack. What comes twice has one effect."""

from __future__ import annotations

from postroad.consumer.attempt import Summary
from postroad.consumer.consumer import Consumer
from postroad.consumer.transaction import following

__all__ = ["Consumer", "Summary", "following"]
