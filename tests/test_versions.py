"""The oldest environment of `.ci/run` is that of the lower bounds in pyproject.toml, no more and no less."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_USERS = ("demo", "ray", "sort")  # extras; `dev` holds the tools of those who work on this package


def lower_bound(requirement):
    (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return Version(bound)


def test_the_oldest_environment_holds_the_lower_bound_of_every_dependency():
    extras = [PROJECT["optional-dependencies"][extra] for extra in OF_USERS]
    texts = sum(extras, PROJECT["dependencies"])
    bounds = {requirement.name: lower_bound(requirement) for requirement in map(Requirement, texts)}
    lines = (ROOT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = (Requirement(line) for line in lines if line and not line.startswith("#"))
    assert {one.name: Version(str(one.specifier).removeprefix("==")) for one in pinned} == bounds


def test_the_lowest_python_is_the_one_that_types_are_checked_for():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert PROJECT["requires-python"] == f">={tool['mypy']['python_version']}"
