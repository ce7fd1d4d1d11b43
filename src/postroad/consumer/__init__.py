"""RECEIVE: deliver → begin → first_time → decode → handler → commit → ack. What comes twice has one effect."""

from __future__ import annotations

from postroad.consumer.consumer import Consumer
from postroad.consumer.handling import following
from postroad.consumer.treatment import Summary

__all__ = ["Consumer", "Summary", "following"]
