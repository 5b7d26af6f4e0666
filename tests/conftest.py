"""Set before anything is imported: no network, no progress bars, one thread (the tensors here are tiny)."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()
torch.set_num_threads(1)

# The same few examples every time; HYPOTHESIS_PROFILE=thorough looks for new ones.
_QUIET = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", max_examples=10, derandomize=True, **_QUIET)
settings.register_profile("thorough", max_examples=500, **_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
