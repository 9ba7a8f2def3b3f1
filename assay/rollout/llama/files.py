"""The weights of the last version on disk, for all servers that sample from them; older files are removed."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from assay.rollout.llama.gguf import Layout, write

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "assay-gguf-"


class WeightFiles:
    """One GGUF file, of the version last asked for: in memory where there is room for two, else on disk."""

    def __init__(self, model: Any, layout: Layout) -> None:
        self._model, self._layout = model, layout
        self._folder: Path | None = None
        self._writing: tuple[int, asyncio.Task[Path]] | None = None
        self._users = 0

    @property
    def folder(self) -> Path | None:
        """Where the file lies; ``None`` before the first."""
        return self._folder

    async def fresh(self, version: int) -> Path:
        """The file of the model's present weights. Calls for a version that is being written share one file."""
        if self._writing is None or self._writing[0] != version or self._writing[1].done():
            self._writing = version, asyncio.create_task(self._write(version))
        return await asyncio.shield(self._writing[1])

    def last(self, version: int) -> Path | None:
        """The file of this version as it was published, if it is the last one."""
        path = self._path(version)
        return path if path is not None and path.exists() else None

    def enter(self) -> None:
        """One more engine uses the files."""
        self._users += 1

    def leave(self) -> None:
        """One less does; with the last the folder is removed."""
        self._users -= 1
        if self._users <= 0 and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _path(self, version: int) -> Path | None:
        return None if self._folder is None else self._folder / f"version-{version}.gguf"

    async def _write(self, version: int) -> Path:
        if self._folder is None:
            self._folder = _make_folder(self._layout.size)
        target = self._folder / f"version-{version}.gguf"
        for _ in write(self._model, self._layout, target):
            await asyncio.sleep(0)
        for old in self._folder.iterdir():
            if not old.name.startswith(f"{target.stem}."):
                old.unlink(missing_ok=True)
        return target


def _make_folder(size: int) -> Path:
    """A folder with room for two files of ``size`` bytes, in shared memory if possible; those of the dead go first."""
    for parent in (_SHARED_MEMORY, Path(tempfile.gettempdir())):
        if parent.is_dir():
            for old in parent.glob(f"{_PREFIX}*"):
                if not _alive(old.name.removeprefix(_PREFIX).partition("-")[0]):
                    shutil.rmtree(old, ignore_errors=True)
    roomy = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    roomy = roomy and shutil.disk_usage(_SHARED_MEMORY).free > 2.2 * size
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_SHARED_MEMORY if roomy else None))


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return True
