from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.brokers.redis.address import Address
from postroad.brokers.redis.settings import ConnectionSettings
from postroad.events import PasswordFileReadable


def address(url: str, **settings: Any) -> Address:
    return Address(url, ConnectionSettings(**settings))


def test_what_is_shown_and_kept_has_no_password() -> None:
    found = address("redis://relay:Tr0ub4dor@redis.example/2")
    assert (found.name, found.user, found.password()) == ("redis://redis.example/2", "relay", "Tr0ub4dor")
    assert "Tr0ub4dor" not in repr(found)
    assert found.destination(None, stream="{topic}") == "redis://redis.example:6379/2?stream={topic}"
    assert found.destination("main", stream="a b") == "redis://main/2?stream=a%20b"


def test_sentinels_are_named_instead_of_the_server() -> None:
    found = address("redis+sentinel://relay:Tr0ub4dor@a:7,b/main/2")
    assert (found.name, found.user, found.follows_master) == ("redis+sentinel://a:7,b/main/2", "relay", True)
    assert found.destination(None, stream="{topic}") == "redis+sentinel://main/2?stream={topic}"
    assert found.destination("shop", stream="s") == "redis://shop/2?stream=s"
    assert address("redis+sentinel://a/main").destination(None) == "redis+sentinel://main/0?"
    assert not address("redis://a").follows_master


def test_settings_replace_the_url_s() -> None:
    found = address("redis://relay:old@host", username="other", password="new")
    assert (found.user, found.password()) == ("other", "new")
    assert address("redis://:only%40pass@host").password() == "only@pass"


def test_a_password_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one\n")
    file.chmod(0o644)
    found = address("redis://host", password_file=file)
    assert found.password() == "one"
    file.write_text("two")
    assert found.password() == "two"
    assert list(found.warnings()) == [PasswordFileReadable(setting="password_file", file=str(file))]


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http://host", "does not begin with redis://"),
        ("redis://", "must name one host"),
        ("redis://a,b", "must name one host"),
        ("redis+sentinel://a,b", "must name the master behind the sentinels"),
        ("redis+sentinel://a/main/orders", "must name the master behind the sentinels"),
        ("redis+sentinel://a,/main", "must name one host, or one or more sentinels"),
        ("redis+sentinel://a:0/main", "a port that is not from 1 to 65535"),
        ("redis://host:99999", "a port that is not from 1 to 65535"),
        ("redis://host/orders", "no number of a database"),
        ("redis://host/0?ssl=no", "the option 'ssl'"),
        ("redis://me:Tr0ub/4dor@host", "percent-encode"),
    ],
)
def test_urls_that_are_wrong(url: str, wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong) as error:
        address(url)
    assert "Tr0ub" not in str(error.value)


def test_files_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    with pytest.raises(InvalidSetting, match="ca_file is given, and url does not begin with rediss://"):
        address("redis://host", ca_file=str(tmp_path / "text"))
    with pytest.raises(InvalidSetting, match="which is not a file"):
        address("rediss://host", ca_file=str(tmp_path / "nothing"))
    with pytest.raises(InvalidSetting, match="can't be used for TLS"):
        address("rediss://host", ca_file=str(tmp_path / "text"))
    with pytest.raises(InvalidSetting, match="cert_file and key_file belong together"):
        address("rediss://host", cert_file="x")
    with pytest.raises(InvalidSetting, match="password and password_file are both given"):
        address("redis://host", password="x", password_file="y")
    with pytest.raises(InvalidSetting, match="password_file is '/nowhere', which can't be read"):
        address("redis://host", password_file="/nowhere")
