"""Solvers: searches for the events to distil, one file each, on the contract of `base`.

Importing the package registers every solver: a new one is a new file here.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
