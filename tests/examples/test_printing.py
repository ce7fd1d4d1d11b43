"""What the examples print with: an example that does not show what it says ends with exit code 1."""

from __future__ import annotations

import pytest

from examples.printing import WIDTH, expect, postroad, quote, run, say


def test_what_did_not_happen_is_a_failure() -> None:
    with pytest.raises(SystemExit, match="FAILED: this did not happen: the moon is blue"):
        run(lambda: expect(False, "the moon is blue"))
    run(lambda: expect(True, "the moon is grey"))


def test_what_does_not_come_in_time_is_a_failure() -> None:
    def late() -> None:
        raise TimeoutError("it did not happen within 60 seconds")

    with pytest.raises(SystemExit, match="FAILED: it did not happen within 60 seconds"):
        run(late)


def test_a_command_that_fails_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="FAILED: this did not happen: postroad status succeeds"):
        run(lambda: postroad("status", POSTROAD_DATABASE="sqlite:////nowhere/at/all.sqlite"))
    assert capsys.readouterr().out.startswith("$ postroad status\npostroad: ")


def test_everything_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 50)
    quote("worker 1", "word " * 50, "", "x" * WIDTH)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line.startswith("  worker 1     | word word")] == lines[4:5]
