"""Checks of instructions that a program can verify (IFEval, Zhou et al. 2023, arXiv:2311.07911): one file a family."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
