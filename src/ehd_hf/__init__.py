"""Which past events are responsible for what just happened? Explainable history distillation (EHD) for event logs.

The front door is lazy: torch and transformers load with the first name that needs them, not with `import ehd_hf`.
Whichever of the two is imported first, `transformers.AutoConfig` and `AutoModel` know our models when they are asked.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "data.sequences": ["EventSequences", "load_events"],
    "data.windows": ["load_windows", "make_windows"],
    "models.point_process": ["MTPPModel"],
    "models.fullynn": ["FullyNNConfig", "FullyNNModel"],
    "models.perplexity": ["dppl", "log_perplexity"],
    "models.distiller": ["DistillerModel"],
    "models.ehd": ["EHDDistillerConfig", "EHDDistillerModel"],
    "models.ranking": ["RankingDistillerConfig", "RankingDistillerModel"],
    "evaluation.answers": ["compare"],
    "explain.explanation": ["Explanation"],
    "explain.explainer": ["EHDDistiller", "load_example"],
    "hub.fetch": ["list_pretrained"],
    "solvers.base": ["Solver"],
    "training.trainer": ["Trainer", "TrainingArguments"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]

if TYPE_CHECKING:
    from .data.sequences import EventSequences as EventSequences, load_events as load_events
    from .data.windows import load_windows as load_windows, make_windows as make_windows
    from .evaluation.answers import compare as compare
    from .explain.explainer import EHDDistiller as EHDDistiller, load_example as load_example
    from .explain.explanation import Explanation as Explanation
    from .hub.fetch import list_pretrained as list_pretrained
    from .models.distiller import DistillerModel as DistillerModel
    from .models.ehd import EHDDistillerConfig as EHDDistillerConfig, EHDDistillerModel as EHDDistillerModel
    from .models.fullynn import FullyNNConfig as FullyNNConfig, FullyNNModel as FullyNNModel
    from .models.perplexity import dppl as dppl, log_perplexity as log_perplexity
    from .models.point_process import MTPPModel as MTPPModel
    from .models.ranking import (
        RankingDistillerConfig as RankingDistillerConfig,
        RankingDistillerModel as RankingDistillerModel,
    )
    from .solvers.base import Solver as Solver
    from .training.trainer import Trainer as Trainer, TrainingArguments as TrainingArguments


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ehd_hf' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


_AUTO_MODULE = "transformers.models.auto.configuration_auto"


def _register_before_use(module: ModuleType) -> None:
    """Make `AutoConfig`, which every Auto class and pipeline asks first, import our models when it is called: they
    register themselves. At import they could meet a transformers that is only half loaded."""

    def with_our_models(method: Any) -> Any:
        @functools.wraps(method)
        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            from . import models as models

            return method(cls, *args, **kwargs)

        return classmethod(call)

    for name in ("from_pretrained", "for_model"):
        setattr(module.AutoConfig, name, with_our_models(getattr(module.AutoConfig, name).__func__))


class _AutoModuleFinder:
    """Finds that module of transformers as Python does, and prepares it right after it has run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _AUTO_MODULE else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_prepare(module: ModuleType) -> None:
                run(module)
                _register_before_use(module)

            spec.loader.exec_module = run_and_prepare  # type: ignore[method-assign]
        return spec


if _AUTO_MODULE in sys.modules:
    _register_before_use(sys.modules[_AUTO_MODULE])
else:
    sys.meta_path.insert(0, _AutoModuleFinder)  # a class with find_spec is enough
