"""Two days later: yesterday's messages are replayed, and it is asked who has looked at a payload."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from postroad.console import Role
from tests.browser.shift import Shift

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_yesterday_is_replayed(shift: Shift) -> None:
    await shift.bind()
    with shift.relay():
        older = await shift.add()
        assert await shift.arrived(1) == [older]
        await shift.log.make_older(timedelta(days=3))
        ids = [await shift.add() for _ in range(3)]
        assert sorted(await shift.arrived(3)) == sorted(ids)
        async with shift.operator() as anna:
            await anna.page.get_by_role("link", name="Time machine").click()
            yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
            await anna.page.get_by_label("since this time").fill(yesterday)
            await anna.press("Look")
            await anna.see("3 messages since", "would be published again")
            await anna.press("Rewind", exact=False)
            await anna.see("This can't be undone", "the same ids")
            await anna.confirm("the warehouse has lost a day")
            assert sorted(await shift.arrived(3)) == sorted(ids)
            assert await anna.audit() == [["anna", "rewind", "the warehouse has lost a day"]]


async def test_who_has_looked_at_this_payload(shift: Shift) -> None:
    order = await shift.add({"order": 7, "card_token": "tok_4242", "street": "Karl-Marx-Allee 1"}, key="vip")
    await shift.bind()
    with shift.relay():
        assert await shift.arrived(1) == [order]
        async with shift.operator() as anna:
            await anna.open(f"message/{order}")
            await anna.page.get_by_label("Reason").fill("the customer asked for it")
            await anna.press("Show the payload")
            await anna.see("Karl-Marx-Allee 1", "[hidden]", "This look is in the audit")
            await expect(anna.page.locator("body")).not_to_contain_text("tok_4242")
    async with shift.operator(name="ben", role=Role.VIEWER, payloads=False) as ben:
        await ben.open(f"message/{order}")
        await ben.see("You may not read payloads")
        await expect(ben.page.locator("body")).not_to_contain_text("Karl-Marx-Allee")
        await ben.open("audit")
        await ben.page.get_by_label("Contains").fill(order)
        await ben.press("Show")
        await expect(ben.page.locator("tbody tr")).to_have_count(1)
        await ben.see("anna", "view_payload", "the customer asked for it")
