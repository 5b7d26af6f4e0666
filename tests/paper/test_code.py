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
    importing = digest("from ehd_hf.models import window\n")
    assert importing != digest("from ehd_hf.models import question\n") != plain


def test_a_row_names_its_task_its_model_and_its_solver(monkeypatch):
    row = code_stamp("windows", [PAPER], "greedy_search+prune")
    assert row["modules"] == ["ehd_hf.models.ehd", "ehd_hf.solvers.greedy_search", "tasks.windows"]
    assert is_current(row) and not is_current({}) and not is_current({**row, "code": "0123456789ab"})
    monkeypatch.setattr(code, "_source", lambda module: "changed = True")
    code_digest.cache_clear()
    assert not is_current(row)
    code_digest.cache_clear()
