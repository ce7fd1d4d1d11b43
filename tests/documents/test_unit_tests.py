"""`tests/unit` mirrors `src/postroad`: each unit test is where its module is."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroad

SOURCE = Path(postroad.__file__).parent
UNIT = Path(__file__).parents[1] / "unit"
TESTS = sorted(str(path.relative_to(UNIT)) for path in UNIT.rglob("*.py"))

# Unit tests of no single module, and what they test.
EXCEPTIONS: dict[str, str] = {}


def module_of(test: str, folder: Path = SOURCE) -> Path | None:
    """The module or package that a unit test is named after: test_cli_settings.py tests cli.py or cli_settings.py."""
    words = Path(test).stem.removeprefix("test_").split("_")
    for count in range(len(words), 0, -1):
        name = (folder / test).parent / "_".join(words[:count])
        if name.with_suffix(".py").is_file():
            return name.with_suffix(".py")
        if (name / "__init__.py").is_file():
            return name / "__init__.py"
    return None


@pytest.mark.parametrize("test", TESTS)
def test_a_unit_test_is_where_its_module_is(test: str) -> None:
    assert Path(test).name.startswith("test_")
    assert (module_of(test) is None) == (test in EXCEPTIONS), f"src/postroad has no module for tests/unit/{test}"


def test_a_test_without_a_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    (tmp_path / "relay" / "plan.py").touch()
    assert module_of("relay/test_plan.py", tmp_path) == tmp_path / "relay" / "plan.py"
    assert module_of("relay/test_plan_ties.py", tmp_path) == tmp_path / "relay" / "plan.py"
    assert module_of("test_plan.py", tmp_path) is None
    assert module_of("relay/test_plans.py", tmp_path) is None
    assert module_of("stores/test_plan.py", tmp_path) is None


def test_every_exception_is_a_test() -> None:
    assert set(EXCEPTIONS) <= set(TESTS)
