"""Attacks on a verifier before it is trained on: golds -> completions that must pass or must not, and what it said."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
