"""CARRY: the relay takes the lanes of a sink and brings every committed message to its destination."""

from postroad.relay.relay import Relay
from postroad.relay.summary import Summary

__all__ = ["Relay", "Summary"]
