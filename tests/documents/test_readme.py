"""The README is run as a reader would, and reads on PyPI: its links are absolute, and lead to files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.documents.reader import ROOT, Reader, blocks, imported, installed, packages
from tests.documents.test_links import FENCED, anchors

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
PAGES = f"{REPOSITORY}/blob/main/"
RAW = REPOSITORY.replace("github.com", "raw.githubusercontent.com") + "/main/"
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"')
LINKS = [one or other for one, other in LINK.findall(FENCED.sub("", TEXT))]


def local(link: str) -> tuple[Path, str]:
    """The file of the repository that an absolute link leads to, and the anchor."""
    address, _, anchor = link.partition("#")
    for prefix in (PAGES, RAW):
        if address.startswith(prefix):
            return ROOT / address.removeprefix(prefix), anchor
    raise AssertionError(f"{link} does not begin with {PAGES} or {RAW}, so it is wrong on PyPI")


def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(README)
    assert len(reader.ran) >= 5


def test_what_is_to_be_installed_is_enough() -> None:
    assert imported(README) <= packages(installed(README))
    assert "postroad[cli]" in installed(README), "the command `postroad` needs it"


def test_twelve_lines_are_enough() -> None:
    (program,) = [text for kind, text in blocks(README) if kind == "python"]
    assert len([line for line in program.splitlines()[1:] if line]) <= 12


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_a_link_leads_to_a_file(link: str) -> None:
    file, anchor = local(link)
    assert file.is_file()
    assert not anchor or anchor in anchors(file)


def test_a_relative_link_is_noticed() -> None:
    with pytest.raises(AssertionError, match="wrong on PyPI"):
        local("docs/glossary.md")


def test_every_address_of_the_project_is_in_the_repository() -> None:
    for name, address in PROJECT["urls"].items():
        assert address.startswith(REPOSITORY), name
        if address.startswith(PAGES):
            assert local(address)[0].is_file()


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_two_commands_are_there(command: str) -> None:
    assert f"\n$ {command} " in TEXT


def test_every_picture_is_in_light_and_dark() -> None:
    pictures = [link for link in LINKS if link.startswith(RAW)]
    assert pictures
    assert {each.replace("-dark.", "-light.") for each in pictures} == {each for each in pictures if "-light." in each}


def test_every_extra_is_named() -> None:
    (sentence,) = re.findall(r"The extras: (.*?)\n\n", TEXT, re.DOTALL)
    assert set(re.findall(r"`([a-z]+)`", sentence)) == set(PROJECT["optional-dependencies"])
