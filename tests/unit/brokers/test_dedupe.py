"""The id by which a destination drops what it has: the same however often a message is sent, another for a rewind."""

from __future__ import annotations

from postroad.brokers.dedupe import dedupe_id
from postroad.message import new_id
from postroad.relay.derived import rewound
from postroad.stores.base import Claimed
from tests.destinations import stored


def test_it_is_the_id_however_often_the_message_is_published() -> None:
    message = stored(headers={"note": "about postroad-rewind"})
    assert dedupe_id(message) == str(message.id)


def test_a_rewound_message_is_to_be_stored_once_more_for_each_rewind() -> None:
    message = stored()
    first, again, second = (rewound(Claimed(message, 0, None, rewind=name)) for name in ("r1", "r1", "r2"))
    assert dedupe_id(first) == dedupe_id(again) == f"{message.id}:r1"
    assert dedupe_id(second) == f"{message.id}:r2"
    with_new_id = rewound(Claimed(message, 0, None, rewind="r1", new_id=(id := new_id())))
    assert dedupe_id(with_new_id) == f"{id}:r1"
