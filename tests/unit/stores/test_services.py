"""A service that a URL names must be in the service file: asyncpg would connect to its default server."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad import InvalidSetting
from postroad.stores.services import check_service


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    return tmp_path / "services"


def test_a_service_that_is_there(file: Path) -> None:
    file.write_text("[shop]\nhost=db.example\npassword=a%%b\n")
    check_service("postgresql://?service=shop")


@pytest.mark.parametrize("url", [None, "postgresql://localhost/service", "postgresql:///shop?sslmode=require"])
def test_a_url_without_a_service(file: Path, url: str | None) -> None:
    check_service(url)


@pytest.mark.parametrize("text", [None, "", "[stock]\nhost=db.example\n"])
def test_a_service_that_is_not_there(file: Path, text: str | None) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidSetting) as error:
        check_service("postgresql://?service=shop", "direct")
    assert str(error.value) == (
        f"direct names the service 'shop'; {file} must be a service file with a section [shop] "
        "(PGSERVICEFILE names another file)"
    )


@pytest.mark.parametrize("line", ["password=battery%staple", "battery-staple"])
def test_a_file_that_can_t_be_read_is_not_quoted(file: Path, line: str) -> None:
    file.write_text(f"[shop]\n{line}\n")
    with pytest.raises(InvalidSetting, match="can't read .*services: ") as error:
        check_service("postgresql://?service=shop")
    assert "staple" not in str(error.value)
