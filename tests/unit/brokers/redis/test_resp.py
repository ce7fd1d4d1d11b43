import hiredis
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.redis.resp import bulk, command


def test_a_command() -> None:
    assert command("XLEN", "ü", 7) == b"*3\r\n$4\r\nXLEN\r\n$2\r\n\xc3\xbc\r\n$1\r\n7\r\n"
    assert bulk(b"") == b"$0\r\n\r\n"


@given(st.lists(st.binary(max_size=200), min_size=1))
def test_a_parser_reads_back_what_was_written(arguments: list[bytes]) -> None:
    """A command has the form of an answer with several texts."""
    reader = hiredis.Reader()
    reader.feed(command(*arguments))
    assert reader.gets() == arguments
    assert not reader.has_data()
