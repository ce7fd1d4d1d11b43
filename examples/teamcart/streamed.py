"""The read side in a process of its own, behind a Redis Stream: the same handlers.

postroad relay --to redis://… --redis-stream teamcart
postroad consume --app examples.teamcart.streamed:consumer
"""

from __future__ import annotations

import os

from examples.teamcart.carts import ItemAdded, TeamCartCreated
from examples.teamcart.view import begin, show_cart, show_item
from postroad import Consumer

STREAM = "teamcart"

consumer = Consumer(
    os.environ.get("REDIS", "redis://localhost"), name="team-cart-stream-view", begin=begin, stream=STREAM, lease="3s"
)
consumer.on(TeamCartCreated)(show_cart)
consumer.on(ItemAdded)(show_item)
