"""It is three in the morning and messages are not arriving: an operator opens the console, finds out why, and acts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import expect

from tests.browser.shift import ORDER, Shift

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_binding_is_missing(shift: Shift) -> None:
    ids = [await shift.add(key="vip") for _ in range(2)]
    with shift.relay():
        async with shift.operator() as anna:
            await anna.see("1 message waits for a blocked route")
            await anna.press("See the messages")
            await anna.page.get_by_role("link", name=ids[0][-8:]).click()
            await anna.see(ids[0])
            await anna.find(f"message/{ids[0]}", "no queue takes the routing key", "Bind a queue")
            await anna.find(f"message/{ids[1]}", ids[0])  # it waits behind the first
            await anna.open()
            await anna.press("Pause")
            await anna.confirm("a queue is being made")
            await shift.bind(ORDER)
            await anna.press("Now")
            await anna.press("Resume")
            await anna.confirm("it is bound")
            assert await shift.arrived(2) == ids
            await anna.open()
            await anna.see("Everything is published")
            assert await anna.audit() == [
                ["anna", "resume", "it is bound"],
                ["anna", "pause", "a queue is being made"],
            ]


async def test_the_broker_is_out(shift: Shift) -> None:
    await shift.bind()
    order = await shift.add()
    await shift.log.make_older(timedelta(minutes=5))
    shift.rabbitmq.stop()
    with shift.relay():
        async with shift.operator() as anna:
            await anna.see("1 message pending for 5m", "although a relay serves it", "its broker may be unavailable")
            await anna.press("Pause")
            await anna.confirm("RabbitMQ is out: the platform team looks at it")
            await anna.press("Now")
            await anna.see("Paused, by anna", "the platform team looks at it")
            shift.rabbitmq.start()
            await anna.press("Resume")
            await anna.see("1 undelivered message to send")
            await anna.confirm("it is back")
            assert await shift.arrived(1) == [order]
            await anna.press("Now")
            await anna.see("Everything is published")  # the page follows by itself
            assert await anna.audit() == [
                ["anna", "resume", "it is back"],
                ["anna", "pause", "RabbitMQ is out: the platform team looks at it"],
            ]


async def test_a_key_is_held(shift: Shift) -> None:
    await shift.bind()
    first = await shift.add(key="vip")
    with shift.relay():
        assert await shift.arrived(1) == [first]
        shift.postroad("key", "hold", "vip", "--reason", "customs", "--who", "ben", "--yes")
        ids = [await shift.add(key="vip") for _ in range(2)]
        async with shift.operator() as anna:
            await anna.see("Key 'vip' is held by ben", "customs")
            await expect(anna.page.locator("#connection")).to_contain_text("live")  # the script runs
            await anna.page.keyboard.press("/")
            await expect(anna.page.locator("#find")).to_be_focused()
            await anna.page.keyboard.type("vip")
            await anna.page.keyboard.press("Enter")
            await expect(anna.page.get_by_role("heading", level=1)).to_have_text("Key vip")
            await anna.see("by ben", "customs")
            await anna.press("Release")
            await anna.confirm("they have paid")
            assert await shift.arrived(2) == ids
            assert await anna.audit() == [["anna", "release", "they have paid"], ["ben", "hold", "customs"]]


async def test_the_relay_is_dead(shift: Shift) -> None:
    await shift.bind()
    first = await shift.add()
    async with shift.operator() as anna:
        with shift.relay() as relay:
            assert await shift.arrived(1) == [first]
            await anna.open()
            await anna.see("Everything is published")
            relay.kill()
            relay.wait()
        order, special = await shift.add(), await shift.add(key="vip")
        await anna.see("No relay has served it since", "2 messages wait")
        command = await anna.page.locator("code", has_text="postroad relay").first.inner_text()
        # It may have died in the middle of something: what the most important customer gets is looked at first.
        await anna.open("key", key="vip")
        await anna.press("Hold")
        await anna.see("1 message of it not published yet")
        await anna.confirm("has the relay died of it?")
        await anna.open()
        with shift.running(command):
            assert await shift.arrived(1) == [order]
            await anna.press("Release the key")
            await anna.confirm("it was not the cause")
            assert await shift.arrived(1) == [special]
            await anna.open("lanes")
            await anna.see("active")
            assert await anna.audit() == [
                ["anna", "release", "it was not the cause"],
                ["anna", "hold", "has the relay died of it?"],
            ]


async def test_messages_are_dead(shift: Shift) -> None:
    await shift.bind()
    ids = [await shift.add("x" * 2000, key=str(number)) for number in range(3)]
    async with shift.operator() as anna:
        with shift.relay("--rabbitmq-max-message-size 1000"):
            await anna.open()
            await anna.see("3 dead messages")
        with shift.relay():
            await anna.press("See what is dead")
            await anna.press("Retry the dead ones")
            await anna.see("3 dead messages would be retried")
            await anna.confirm("the limit is higher now")
            assert sorted(await shift.arrived(3)) == sorted(ids)
            await anna.open()
            await anna.see("Everything is published")
            await anna.open("trouble")
            await anna.see("No message fails")
            assert await anna.audit() == [["anna", "retry", "the limit is higher now"]]


async def test_more_die_while_the_operator_decides(shift: Shift) -> None:
    await shift.bind()
    await shift.add("x" * 2000)
    with shift.relay("--rabbitmq-max-message-size 1000"):
        async with shift.operator() as anna, shift.operator(name="ben") as ben:
            await anna.see("1 dead message")
            await anna.open("do/drop", all="1")
            await anna.see("1 dead message would be dropped")
            await shift.add("y" * 2000)
            await ben.see("2 dead messages")
            await anna.page.get_by_label("Reason").fill("nobody misses it")
            await anna.page.locator("#confirm").click()
            await anna.see("Nothing was changed", "more than the 1 that you confirmed", "2 dead messages would be")
            anna.forgive("409 (Conflict)")
            await anna.confirm("nobody misses them")
            assert await anna.audit() == [["anna", "drop", "nobody misses them"]]
