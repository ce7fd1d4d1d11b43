"""URLs and settings of NATS: what is refused, how a user logs in, and that no password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.brokers.nats.address import Address
from postroad.brokers.nats.nkeys import Signer
from postroad.brokers.nats.settings import ConnectionSettings
from postroad.brokers.registry import Subscription, publisher_for, subscriber_for, subscriber_settings
from postroad.safe_text import without_passwords

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def address(url: str, **settings: Any) -> Address:
    return Address(url, ConnectionSettings(**settings))


def test_the_destination_does_not_depend_on_the_order_of_hosts_or_on_users() -> None:
    first = publisher_for("nats://shop:s3cr3t@b,a:4222", subject="shop.{type}")
    second = publisher_for("tls://a,b:4222", subject="shop.{type}", envelope="plain")
    assert first.destination == second.destination == "nats://a:4222,b:4222/?subject=shop.{type}"
    assert publisher_for("nats://c", cluster="main", stream="S").destination == "nats://main/?subject={topic}&stream=S"


def test_no_password_is_shown() -> None:
    publisher = publisher_for("nats://shop:s3cr3t@a")
    assert "s3cr3t" not in repr(publisher) + publisher.name + publisher.destination
    assert without_passwords("failed: nats://shop:s3cr3t@a,b") == "failed: nats://shop:***@a,b"
    assert "s3cr3t" not in repr(ConnectionSettings(password="s3cr3t"))


@pytest.mark.parametrize(
    ("url", "settings", "wrong"),
    [
        ("nats://", {}, "names no host"),
        ("nats://a:0", {}, "port"),
        ("nats://a:99999", {}, "port"),
        ("nats://a/orders", {}, "path"),
        ("nats://a?x=1", {}, "option 'x'"),
        ("http://a", {}, "nats:// or tls://"),
        ("nats://a", {"ca_file": "/nowhere"}, "ca_file is '/nowhere', which is not a file"),
        ("nats://a", {"cert_file": "/a"}, "cert_file and key_file belong together"),
        ("nats://a", {"tls_first": True}, "tls_first is true"),
        ("nats://a", {"password": "a", "nkey_file": "b"}, "password and nkey_file are both given"),
        ("nats://a", {"password_file": "/nowhere"}, "there is no username"),
        ("nats://u@a", {"password_file": "/nowhere"}, "password_file is '/nowhere', which can't be read"),
        ("nats://a", {"inbox_prefix": "a.*"}, "inbox_prefix is 'a.*'"),
        ("nats://a", {"domain": "a.b"}, "domain is 'a.b'"),
    ],
)
def test_what_is_refused(url: str, settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        address(url, **settings)


def test_a_key_signs_and_has_a_public_form(tmp_path: Path) -> None:
    (tmp_path / "user.nk").write_text(SEED + "\n")
    login = address("nats://a", nkey_file=tmp_path / "user.nk")._login("nonce")
    assert login["nkey"] == PUBLIC
    assert login["sig"] == Signer(SEED).sign("nonce")
    credentials = tmp_path / "user.creds"
    credentials.write_text(
        "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig\n------END NATS USER JWT------\n\n*** keep it secret ***\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    )
    login = address("nats://a", credentials_file=credentials)._login("nonce")
    assert login == {"jwt": "eyJ0.eyJq.sig", "sig": Signer(SEED).sign("nonce")}


@pytest.mark.parametrize("text", ["", "SU", SEED[:-1], SEED[:-1] + "A", "SAAB" + SEED[4:], "ü" * 58, PUBLIC])
def test_what_is_no_seed_is_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "user.nk").write_text(text)
    with pytest.raises(InvalidSetting, match="nkey_file is .*begins with SU") as error:
        address("nats://a", nkey_file=tmp_path / "user.nk")
    assert len(text) < 10 or text not in str(error.value)
    with pytest.raises(InvalidSetting, match="credentials_file is .*no block"):
        address("nats://a", credentials_file=tmp_path / "user.nk")


def test_files_with_secrets_that_all_may_read_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    file.chmod(0o644)
    (warning,) = address("nats://u@a", password_file=file).warnings()
    assert "password_file" in str(warning)
    assert address("nats://u@a", password_file=file)._login("") == {"user": "u", "pass": "secret"}
    file.chmod(0o600)
    assert list(address("nats://u@a", password_file=file).warnings()) == []


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"declare": "create"}, "no stream is given"),
        ({"declare": "create", "stream": "S"}, "can't take all subjects"),
        ({"stream_config": {"num_replicas": 3}}, "it is for declare='create'"),
        ({"subjects": ["a"]}, "it is for declare='create'"),
        ({"stream": "a.b"}, "stream is 'a.b'"),
        ({"subject": "a b"}, "subject is 'a b'"),
        ({"subject": "$JS.{topic}"}, "a subject of the server itself"),
    ],
)
def test_publishers_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        publisher_for("nats://a", **settings)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"subject": "a", "subjects": ["b"]}, "subject and subjects are both given"),
        ({"subject": "a b"}, "subject is 'a b'"),
        ({"subjects": "a"}, "subjects is 'a'"),
        ({"dead_letter_subject": "a.*"}, "must not have wildcards"),
        ({"subject": "dead.>"}, "dead letters would be received again"),
        ({"subject": "dead.*"}, "dead letters would be received again"),
        ({"takeover_after": "500ms"}, "it must be 1s at least"),
        ({}, "subjects is ()"),
    ],
)
def test_subscribers_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        subscriber_for("nats://a", Subscription("orders"), subscriber_settings("nats://a", settings))
    assert wrong in str(error.value)


def test_what_is_derived_from_the_consumer() -> None:
    subscription = Subscription("shop.orders", types=("order.created", "order.paid"), batch_size=200)
    found = subscriber_for("nats://a", subscription)._settings  # type: ignore[attr-defined]
    assert (found.durable, found.dead_letter_subject, found.prefetch) == ("shop-orders", "dead.shop-orders", 400)
    assert found.subjects == ("order.created", "order.paid")
