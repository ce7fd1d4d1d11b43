"""Each remedy leads to a page or a change that exists, and asks for the right that is needed there."""

from __future__ import annotations

from uuid import UUID

import pytest

from postroad.admin import Action, Remedy, State
from postroad.console.pages.routes import ROUTES
from postroad.console.remedies import button_of

RIGHTS = {route.path.strip("/"): route.right for route in ROUTES if route.method == "GET"}


@pytest.mark.parametrize("action", Action)
def test_a_button_leads_somewhere(action: Action) -> None:
    button = button_of(Remedy(action=action, sink="s", key="k", id=UUID(int=1), state=State.DEAD))
    if action is Action.START_RELAY:
        assert button is None
    else:
        assert button is not None
        assert RIGHTS[button.path] is button.right
        assert button.query == {"sink": "s", "key": "k", "id": str(UUID(int=1)), "state": "dead"}
