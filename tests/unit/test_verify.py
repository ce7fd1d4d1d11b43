"""The history checker finds one planted case of each kind, and nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from postroad.verify import Arrival, Committed, Incident, Verdict, verify

LOG = [Committed(f"m{n}", f"k{n % 3}", n) for n in range(12)]


def arrivals(*ids: str, by: str | None = None) -> list[Arrival]:
    return [Arrival(id, at=float(at), by=by) for at, id in enumerate(ids)]


def in_order() -> list[str]:
    return [str(message.id) for message in LOG]


def check(ids: Sequence[str], *incidents: Incident) -> Verdict:
    return verify(LOG, arrivals(*ids, by="A"), incidents)


def test_all_is_well() -> None:
    verdict = check(in_order())
    assert verdict.passed
    assert str(verdict) == (
        "12 committed, 12 arrived: 0 lost, 0 phantoms, 0 out of order, 0 duplicates, 0 of them without a reason"
    )


def test_a_lost_message() -> None:
    verdict = check([id for id in in_order() if id != "m5"])
    assert not verdict.passed
    assert [message.id for message in verdict.lost] == ["m5"]
    assert "  lost: m5 at position 5" in str(verdict)


def test_a_phantom() -> None:
    verdict = check([*in_order(), "m99"])
    assert not verdict.passed
    assert [arrival.id for arrival in verdict.phantoms] == ["m99"]
    assert (verdict.lost, verdict.overtaken, verdict.duplicates) == ([], [], [])


def test_first_arrivals_out_of_order() -> None:
    ids = in_order()
    ids.remove("m3")
    ids.insert(ids.index("m6") + 1, "m3")
    verdict = check(ids)
    assert not verdict.passed
    assert [(each.message.id, each.by.id) for each in verdict.overtaken] == [("m3", "m6")]


def test_a_duplicate_behind_newer_ones_is_not_out_of_order() -> None:
    verdict = check([*in_order(), "m0"], Incident("kill", 0.0, 20.0))
    assert verdict.passed
    assert verdict.overtaken == []


def test_a_duplicate_has_a_reason_or_is_one_too_many() -> None:
    again = [*in_order(), "m4"]
    (duplicate,) = check(again).duplicates
    assert (duplicate.message.id, duplicate.again.at, duplicate.reason) == ("m4", 12.0, None)
    assert not check(again).passed
    assert "  without a reason: m4 at 4.000 by A and 12.000 by A" in str(check(again))
    killed = Incident("relay A was killed", began=6.0, ended=8.0, to="A", reach=2.0)
    assert [each.reason for each in check(again, killed).duplicates] == ["relay A was killed"]
    assert check(again, killed).passed
    for elsewhere in (
        Incident("before it was sent", began=1.0, ended=3.0, reach=2.0),
        Incident("long after it was sent", began=7.0, ended=9.0, reach=2.0),
        Incident("after it had come again", began=13.0, ended=14.0, reach=20.0),
        Incident("to another relay", began=6.0, ended=8.0, to="B", reach=2.0),
    ):
        assert not check(again, elsewhere).passed, elsewhere.reason


def test_a_cursor_that_was_reset() -> None:
    """After a kill all of the log goes again: only what was under way may."""
    killed = Incident("relay A was killed", began=11.0, ended=13.0, to="A", reach=3.0)
    verdict = check([*in_order(), *in_order()], killed)
    assert not verdict.passed
    assert [each.message.id for each in verdict.unexplained] == [f"m{n}" for n in range(8)]


def test_a_reason_is_good_for_one_time() -> None:
    killed = Incident("relay A was killed", began=11.0, ended=12.0, reach=2.0)
    verdict = check([*in_order(), "m10", "m11", "m10", "m11"], killed)
    assert [each.reason for each in verdict.duplicates] == [killed.reason, killed.reason, killed.reason, None]
    assert [(each.message.id, each.before.at) for each in verdict.unexplained] == [("m11", 13.0)], "it had long come"


def test_what_a_relay_had_under_way_may_come_behind_what_the_next_one_sent() -> None:
    before, again = Arrival("m4", at=5.0, by="B"), Arrival("m4", at=9.0, by="A")
    assert Incident("A lost its lease", began=4.0, ended=9.0, to="A").explains(before, again)
    assert not Incident("A lost its lease", began=4.0, ended=8.0, to="A").explains(before, again), "it went on"
    assert not Incident("A lost its lease", began=6.0, ended=9.0, to="A").explains(before, again), "it had long come"
    assert not Incident("A lost its lease", began=4.0, ended=9.0, to="C").explains(before, again)


def test_messages_without_a_key_have_no_order() -> None:
    log = [Committed(n, None, n) for n in range(3)]
    assert verify(log, [Arrival(n) for n in (2, 0, 1)]).passed


def test_many_are_counted_and_some_are_named() -> None:
    text = str(verify(LOG, []))
    assert text.count("  lost: ") == 5
    assert text.endswith("  and 7 more")


@given(st.permutations(LOG), st.data())
def test_order_is_about_each_key_alone(shuffled: list[Committed], data: st.DataObject) -> None:
    """Any mixture of the keys' own orders is fine; and any other order is not."""
    verdict = verify(LOG, [Arrival(message.id) for message in shuffled])
    fine = all(
        [each.position for each in shuffled if each.key == key] == [each.position for each in LOG if each.key == key]
        for key in ("k0", "k1", "k2")
    )
    assert verdict.passed is fine
