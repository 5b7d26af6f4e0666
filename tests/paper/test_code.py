"""The digest by which a row says what code made it."""

from pathlib import Path

import pytest

from tasks import code
from tasks.code import code_digest, code_stamp, is_current

PAPER = Path(code.__file__).parents[3] / "src" / "ehd_hf" / "checkpoints" / "incidents-paper"


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a module with this text, and of `ehd_hf` as it is."""
    monkeypatch.syspath_prepend(tmp_path)

    def digest(text):
        (tmp_path / "a_module.py").write_text(text)
        code_digest.cache_clear()
        return code_digest("a_module")

    yield digest
    code_digest.cache_clear()


def test_a_digest_is_of_what_code_does_and_of_what_it_imports(digest):
    plain = digest("def f(x):\n    return x + 1\n")
    assert plain == digest('"""Words."""\n\n\ndef f(x):\n    """More."""\n    # and more\n    return (x + 1)\n')
    assert plain != digest("def f(x):\n    return x + 2\n")
    reaching = digest("from ehd_hf.models.window import places_of\n\n\ndef f(x):\n    return places_of(x, x)\n")
    assert reaching != digest(
        "from ehd_hf.models.window import most_recent\n\n\ndef f(x):\n    return most_recent(x, x)\n"
    )


def test_a_definition_counts_as_soon_as_its_name_is_reached(digest, monkeypatch):
    source, added = code._source, ""
    monkeypatch.setattr(code, "_source", lambda name: source(name) + added * (name == "ehd_hf.models.window"))
    text = "from ehd_hf.models.window import Window\n\n\ndef f(x):\n    return Window(*x).{}\n"
    before = {name: digest(text.format(name)) for name in ("history", "new_part")}
    added = "\n\nclass More(Window):\n    def new_part(self):\n        return _one\n\n\n_one = 1\n"
    after = {name: digest(text.format(name)) for name in before}
    assert after["history"] == before["history"] and after["new_part"] != before["new_part"]
    added = added.replace("_one = 1", "_one = 2")
    assert digest(text.format("new_part")) != after["new_part"]


def test_a_row_names_its_task_its_model_and_its_solver(monkeypatch):
    row = code_stamp("windows", [PAPER], "greedy_search+prune")
    assert row["modules"] == [
        f"ehd_hf.{name}" for name in ("models.ehd", "models.fullynn", "solvers.greedy_search")
    ] + ["tasks.windows"]
    assert is_current(row) and not is_current({}) and not is_current({**row, "code": "0123456789ab"})
    monkeypatch.setattr(code, "_source", lambda module: "changed = True")
    code_digest.cache_clear()
    assert not is_current(row)
    code_digest.cache_clear()
