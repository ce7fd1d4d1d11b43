"""DELIVER: the relay owns lanes of a sink and publishes every committed message to the sink's destination."""

from postroad.relay.group import RelayGroup
from postroad.relay.relay import Relay
from postroad.relay.summary import Summary

__all__ = ["Relay", "RelayGroup", "Summary"]
