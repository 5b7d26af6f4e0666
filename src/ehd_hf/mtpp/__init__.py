"""Marked temporal point processes (MTPPs), one file per backbone, all on the contract of `base.MTPPModel`.

Importing the package registers every backbone with transformers' Auto classes: a new one is a new file here.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
