"""What a command shows of passwords, and what it warns of: files others can read, and TLS that verifies nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import GUARDED_PASSWORD
from tests.services.postgresql import PostgreSQL

SECRET: Final = "Tr0ub"
# Not percent-encoded, as people write them; and what a parser takes for the password ends too early.
FORMS: Final = [
    f"{SECRET}@{SECRET}",
    f"{SECRET}/{SECRET}",
    f"{SECRET}#{SECRET}",
    f"{SECRET}?{SECRET}",
    f"{SECRET}:{SECRET}",
]


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("password", FORMS)
@pytest.mark.parametrize(
    ("variable", "url"),
    [("POSTROAD_DATABASE", "postgresql://me:{}@127.0.0.1:1/shop"), ("POSTROAD_TO", "amqp://me:{}@127.0.0.1:1/shop")],
)
def test_config_shows_no_password_that_was_not_encoded(variable: str, url: str, password: str) -> None:
    for command in (["config"], ["config", "--json"]):
        done = ran(*command, **{variable: url.format(password)})
        assert SECRET not in done.stdout + done.stderr
        assert "me" in done.stdout + done.stderr, "the rest is shown"


@pytest.mark.parametrize("password", FORMS)
def test_nor_does_a_command_that_fails(password: str) -> None:
    done = ran("status", POSTROAD_DATABASE=f"postgresql://me:{password}@127.0.0.1:1/shop")
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


def test_files_with_passwords_that_others_can_read_are_named(tmp_path: Path) -> None:
    config = tmp_path / "postroad.toml"
    config.write_text(f'database = "postgresql://me:{SECRET}@127.0.0.1:1/shop"\n')
    password = tmp_path / "password"
    password.write_text(SECRET)
    for mode, warned in ((0o644, True), (0o600, False)):
        config.chmod(mode)
        password.chmod(mode)
        done = ran("config", "--config", str(config))
        assert (f"{config}" in done.stderr) is warned, done.stderr
        for variable in ("POSTROAD_DATABASE_PASSWORD_FILE", "POSTROAD_RABBITMQ_PASSWORD_FILE"):
            urls = {"POSTROAD_DATABASE": "postgresql://me@127.0.0.1:1/shop", "POSTROAD_TO": "amqp://me@127.0.0.1:1/"}
            done = ran("config", **urls, **{variable: str(password)})
            assert (f"{password}" in done.stderr) is warned, done.stderr
            assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("POSTROAD_DATABASE", "postgresql://me@host/shop?sslmode=require"),
        ("POSTROAD_TO", "amqps://me@host/?no_verify_ssl=1"),
    ],
)
def test_tls_that_verifies_nothing_is_warned_of(variable: str, url: str) -> None:
    done = ran("config", **{variable: url})
    assert done.returncode == 0, done.stderr
    assert "verif" in done.stderr


def test_the_password_of_the_database_may_be_in_a_file(guarded: PostgreSQL, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(GUARDED_PASSWORD + "\n")
    file.chmod(0o600)
    url = guarded.url(user="shop")
    assert "password" in ran("status", POSTROAD_DATABASE=url).stderr
    done = ran("status", POSTROAD_DATABASE=url, POSTROAD_DATABASE_PASSWORD_FILE=str(file))
    assert "postroad migrate" in done.stderr, "it got as far as the tables, which are not there"
    assert GUARDED_PASSWORD not in json.dumps([done.stdout, done.stderr])
