"""All that travels with a checkpoint: point processes, distillers, and what they are measured by. Flat, one file each.

Importing the package registers every model with transformers' Auto classes: a new one is a new file here.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
