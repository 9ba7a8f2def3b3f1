"""The built-in verifiers, one file each: importing this folder files every one of them under its name."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
