"""Which past events are responsible for what just happened? Explainable history distillation (EHD) for event logs.

The front door is lazy: torch and transformers load with the first name that needs them, not with `import ehd_hf`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "events": ["EventSequences", "load_events"],
    "windows": ["load_windows", "make_windows"],
    "mtpp.base": ["MTPPModel"],
    "mtpp.fullynn": ["FullyNNConfig", "FullyNNModel"],
    "perplexity": ["dppl", "log_perplexity"],
    "distillers.base": ["DistillerModel"],
    "distillers.ehd": ["EHDDistillerConfig", "EHDDistillerModel"],
    "distillers.ranking": ["RankingDistillerConfig", "RankingDistillerModel"],
    "comparison": ["compare"],
    "explanation": ["Explanation"],
    "pipeline": ["EHDDistiller", "list_pretrained", "load_example"],
    "solvers.base": ["Solver"],
    "training": ["Trainer", "TrainingArguments"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]

if TYPE_CHECKING:
    from .comparison import compare as compare
    from .distillers.base import DistillerModel as DistillerModel
    from .distillers.ehd import EHDDistillerConfig as EHDDistillerConfig
    from .distillers.ehd import EHDDistillerModel as EHDDistillerModel
    from .distillers.ranking import RankingDistillerConfig as RankingDistillerConfig
    from .distillers.ranking import RankingDistillerModel as RankingDistillerModel
    from .events import EventSequences as EventSequences
    from .events import load_events as load_events
    from .explanation import Explanation as Explanation
    from .mtpp.base import MTPPModel as MTPPModel
    from .mtpp.fullynn import FullyNNConfig as FullyNNConfig
    from .mtpp.fullynn import FullyNNModel as FullyNNModel
    from .perplexity import dppl as dppl
    from .perplexity import log_perplexity as log_perplexity
    from .pipeline import EHDDistiller as EHDDistiller
    from .pipeline import list_pretrained as list_pretrained
    from .pipeline import load_example as load_example
    from .solvers.base import Solver as Solver
    from .training import Trainer as Trainer
    from .training import TrainingArguments as TrainingArguments
    from .windows import load_windows as load_windows
    from .windows import make_windows as make_windows


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ehd_hf' has no attribute {name!r}; it offers {', '.join(sorted(__all__))}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
