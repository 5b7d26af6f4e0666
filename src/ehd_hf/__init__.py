"""Which past events are responsible for what just happened? Explainable history distillation (EHD) for event logs.

The front door is lazy: torch and transformers load with the first name that needs them, not with `import ehd_hf`.
"""

from __future__ import annotations

import importlib
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
    from .data.sequences import EventSequences as EventSequences
    from .data.sequences import load_events as load_events
    from .data.windows import load_windows as load_windows
    from .data.windows import make_windows as make_windows
    from .evaluation.answers import compare as compare
    from .explain.explainer import EHDDistiller as EHDDistiller
    from .explain.explainer import load_example as load_example
    from .explain.explanation import Explanation as Explanation
    from .hub.fetch import list_pretrained as list_pretrained
    from .models.distiller import DistillerModel as DistillerModel
    from .models.ehd import EHDDistillerConfig as EHDDistillerConfig
    from .models.ehd import EHDDistillerModel as EHDDistillerModel
    from .models.fullynn import FullyNNConfig as FullyNNConfig
    from .models.fullynn import FullyNNModel as FullyNNModel
    from .models.perplexity import dppl as dppl
    from .models.perplexity import log_perplexity as log_perplexity
    from .models.point_process import MTPPModel as MTPPModel
    from .models.ranking import RankingDistillerConfig as RankingDistillerConfig
    from .models.ranking import RankingDistillerModel as RankingDistillerModel
    from .solvers.base import Solver as Solver
    from .training.trainer import Trainer as Trainer
    from .training.trainer import TrainingArguments as TrainingArguments


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ehd_hf' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
