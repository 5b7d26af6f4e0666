"""One file from many: the flat source means the same as the modules it was made from, however they import."""

import ast
import dataclasses
import importlib
import sys
import textwrap
from pathlib import Path

import pytest

import ehd_hf.models  # noqa: F401  # registers every backbone
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.hf_pipeline import EventHistoryPipeline, flat_source
from ehd_hf.models.lognormmix import LogNormMixModel

PACKAGE = {
    "__init__": "VERSION = 7",
    "shared": """
        import math
        from typing import NamedTuple

        # Another module has one of these too.
        _SCALE = 2.0
        TABLE = {"a": 1}
        TABLE |= {"b": 2}


        def unused():
            raise RuntimeError


        def scaled(value):
            return _SCALE * math.floor(value)


        class Pair(NamedTuple):
            left: float
            right: float
        """,
    "helpers": """
        from __future__ import annotations

        from dataclasses import dataclass
        from typing import TYPE_CHECKING, ClassVar

        from . import shared as common
        from .shared import scaled as doubled

        if TYPE_CHECKING:
            from decimal import Decimal

        _SCALE = 3.0


        @dataclass
        class Later:
            kind: ClassVar[str] = "later"
            follows: Sooner | None = None

            def total(self, value: Decimal | float, *others: "Decimal") -> list[Sooner]:
                from .inner.lazy import late

                return doubled(value) + _SCALE + common._SCALE + late(value)


        class Sooner:
            pass
        """,
    "models": """
        import math as mathematics

        from . import VERSION
        from .helpers import Later
        from .shared import TABLE, Pair

        REGISTRY = {}


        def register(name):
            def add(cls):
                REGISTRY[name] = cls
                return cls

            return add


        @register("model")
        class Model:
            \"\"\"Words.\"\"\"

            def answer(self, value: float) -> Pair:
                # A reason.
                return Pair(Later().total(value), mathematics.sqrt(TABLE["b"] + VERSION))


        class Other:
            pass


        REGISTRY["other"] = Other
        REGISTRY["again"] = Model
        """,
    "inner/__init__": "",
    "inner/lazy": """
        def late(value):
            return f"{value}".count(".")
        """,
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Builds the package, with some of its files changed, and imports its `models`."""
    monkeypatch.syspath_prepend(tmp_path)

    def build(**changes):
        for path, text in (PACKAGE | changes).items():
            file = tmp_path / "small_package" / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text).lstrip())
        importlib.invalidate_caches()
        return importlib.import_module("small_package.models")

    yield build
    for name in [name for name in sys.modules if name.partition(".")[0] == "small_package"]:
        del sys.modules[name]


@pytest.fixture
def run(monkeypatch):
    """Runs source as a module of its own."""

    def load(source):
        module = type(sys)("flat")
        monkeypatch.setitem(sys.modules, "flat", module)  # dataclasses look there
        exec(compile(source, "flat", "exec"), module.__dict__)
        return module

    return load


def test_the_flat_file_computes_what_the_package_does(package, run):
    models = package()
    source = flat_source([models.Model], "A model.")
    assert "from ." not in source and "small_package." not in source.replace("# --- small_package.", "")
    flat = run(source)
    assert flat.__doc__ == "A model." and flat.Model.__doc__ == "Words."
    assert flat.Model().answer(5.5) == models.Model().answer(5.5) == (10.0 + 3.0 + 2.0 + 1, 3.0)


def test_only_what_is_needed_travels_and_what_is_done_with_it(package, run):
    source = flat_source([package().Model], "A model.")
    flat = run(source)
    assert not hasattr(flat, "unused") and not hasattr(flat, "Sooner")
    assert flat.TABLE == {"a": 1, "b": 2} and set(flat.REGISTRY) == {"model", "other", "again"}
    assert "# Another module has one of these too.\n_SCALE = 2.0\n" in source and "# A reason." in source


def test_of_two_things_with_one_name_the_later_is_renamed(package, run):
    flat = run(flat_source([package().Model], "A model."))
    assert flat._SCALE == 2.0 and flat._SCALE_small_package_helpers == 3.0


def test_annotations_that_nobody_reads_stay_unread(package, run):
    flat = run(flat_source([package().Model], "A model."))
    assert flat.Later.total.__annotations__["value"] == "Decimal | float"
    assert flat.Later.kind == "later" and [field.name for field in dataclasses.fields(flat.Later)] == ["follows"]
    assert flat.Model.answer.__annotations__ == {"value": float, "return": flat.Pair}  # these are read


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return doubled(value)", "return vars(common) and doubled(value)", "'the module' is not defined at the top"),
        ("import scaled as doubled", "import unknown as doubled", "'unknown' is not defined at the top of small_"),
        ("*others:", "_SCALE=3.0, *others:", "'_SCALE' of small_package.helpers must be called '_SCALE_small_"),
    ],
)
def test_what_cannot_travel_is_said_with_where_it_stands(package, old, new, says):
    models = package()
    helpers = Path(models.__file__).with_name("helpers.py")
    assert old in helpers.read_text()
    helpers.write_text(helpers.read_text().replace(old, new))
    with pytest.raises(ValueError, match=says):
        flat_source([models.Model], "A model.")


def test_code_that_lies_in_no_file_cannot_travel():
    with pytest.raises(ValueError, match="must lie in a file; module 'nowhere' does not. Move it into one."):
        flat_source([type("Model", (), {"__module__": "nowhere"})], "A model.")


def test_a_models_file_imports_installed_libraries_only_and_registers_itself():
    source = flat_source([FullyNNModel, FullyNNConfig], "FullyNN.")
    imported = {node.module or "" for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for a in node.names}
    allowed = {"torch", "transformers", "huggingface_hub", "math", "typing", "dataclasses", "importlib"}
    assert {name.partition(".")[0] for name in imported} <= allowed
    assert "AutoModel.register(FullyNNConfig, FullyNNModel)" in source and "LogNormMix" not in source


def test_two_backbones_fit_into_one_file(run):
    source = flat_source([FullyNNModel, LogNormMixModel], "Both.")
    assert source.count("class MTPPModel(") == 1 and "_SCALE_QUANTILES_mtpp_lognormmix" in source
    compile(source, "flat", "exec")


# --- the pipeline that travels


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller.from_pretrained("incidents")


EVENTS = [(0.5 * i, ["deploy", "alert", "ticket"][i % 3]) for i in range(11)]


def test_the_pipeline_answers_as_the_explainer_does(explainer):
    pipeline = EventHistoryPipeline(explainer.model, device=-1)
    for options in ({"future": 2}, {"future": 3, "history": 4}, {}):
        expected = explainer.explain(EVENTS, refine="none", **options).to_dict()
        answer = pipeline(EVENTS, **options)
        assert answer == {key: expected[key] for key in answer}
    numbers = {"deploy": 0, "alert": 2, "ticket": 6}
    by_number = {"times": [time for time, _ in EVENTS], "marks": [numbers[mark] for _, mark in EVENTS]}
    assert pipeline(by_number) == pipeline(EVENTS) and pipeline([EVENTS, by_number]) == [pipeline(EVENTS)] * 2
    started = explainer.explain(
        {"times": [by_number["times"]], "marks": [by_number["marks"]], "start": [-1.0]}, refine="none"
    )
    assert pipeline(by_number | {"start": -1.0})["dppl_left"] == started.dppl_left != pipeline(EVENTS)["dppl_left"]


@pytest.mark.parametrize(
    ("events", "options", "says"),
    [
        (EVENTS, {"future": 0}, "future must be a number of events of at least 1; got 0"),
        (EVENTS, {"futures": 3}, "takes future and history; got unknown futures"),
        (EVENTS, {"future": 11}, "has 11 events, all of them in the future of 11"),
        (EVENTS[::-1], {}, "a mark for every time, in order"),
        ([(0.0, "deploy"), (1.0, "party")], {"future": 1}, "knows the marks deploy, .*; got 'party'"),
    ],
)
def test_bad_input_is_answered_in_words(explainer, events, options, says):
    with pytest.raises(ValueError, match=says):
        EventHistoryPipeline(explainer.model, device=-1)(events, **options)
