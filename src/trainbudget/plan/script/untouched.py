"""A script planned again while it is running: what the run has written must stay as it is.

Files that the script opens for writing go to a scratch folder instead, whatever it would delete, move or start ends it.
Python's audit events (PEP 578) see these through every door of the standard library; native code that writes by itself
(`torch.save`, databases) is not seen, and the script never gets to the point where it saves what it has trained.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainbudget.plan.simulated_device.cuda import Patches

#: Audit events of things that cannot be taken back; the first argument (and for some the second) is a path.
_DESTRUCTIVE = frozenset(
    [
        *("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.chown"),
        *("shutil.rmtree", "shutil.move"),
    ]
)
_STARTS = frozenset(["os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen"])
#: Programs that only look or compile: asked for by libraries at import and by scripts for their logs.
_HARMLESS_PROGRAMS = frozenset(
    [
        *("git", "nvidia-smi", "uname", "lscpu", "hostname", "which", "file"),
        *("gcc", "g++", "cc", "c++", "clang", "ld", "objdump", "ldconfig"),
    ]
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Where libraries keep what they may lose: several processes write there at any time.
_CACHES = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"),
)
#: A file that is opened to be changed in place is copied first, up to this size.
_COPIED_BYTES = 64 * 2**20


class Untouched:
    """Keeps the script's hands off the run's files. `refuse(text)` is called where it must end; it raises."""

    def __init__(self, scratch: Path, refuse: Callable[[str], None]) -> None:
        self._scratch, self._refuse = scratch, refuse
        self._copies: dict[str, Path] = {}
        self._active = False
        home = os.path.expanduser("~/.cache")
        named = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        self._own = tuple(os.path.realpath(p) for p in (str(scratch), "/dev", "/proc", home, *named))

    def install(self, patches: Patches) -> None:
        """From now on; ends when `release` is called."""
        self._active = True
        real = io.open

        def redirected(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return real(self._instead_of(file, mode), mode, *args, **kwargs)

        patches.put(builtins, "open", redirected)
        patches.put(io, "open", redirected)
        sys.addaudithook(self._look)

    def release(self) -> None:
        """The script is over; hooks cannot be taken off, this one looks away."""
        self._active = False

    def _instead_of(self, file: Any, mode: str) -> Any:
        """The scratch copy of a file that is written, or was; else the file itself."""
        if not self._active or not isinstance(file, (str, bytes, os.PathLike)):
            return file
        path = os.path.realpath(os.fsdecode(file))
        if path in self._copies:
            return self._copies[path]
        if not set(mode) & set("wax+") or self._is_own(path):
            return file
        if "x" in mode and os.path.exists(path):
            return file  # it will say so
        copy = self._scratch / "written" / f"{len(self._copies)}-{os.path.basename(path)}"
        copy.parent.mkdir(exist_ok=True)
        if "r" in mode and os.path.exists(path):
            if os.path.getsize(path) > _COPIED_BYTES:
                self._refuse(f"it changes {path} before it trains")
            shutil.copyfile(path, copy)
        self._copies[path] = copy
        return copy

    def _is_own(self, path: str) -> bool:
        return "__pycache__" in path or any(path == root or path.startswith(root + os.sep) for root in self._own)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and isinstance(flags, int) and flags & _WRITES and not self._theirs_is_ours(path):
                self._refuse(f"it writes {os.fsdecode(path)} before it trains")
        elif event in _DESTRUCTIVE:
            for path in arguments[:2]:
                if isinstance(path, (str, bytes, os.PathLike)) and not self._theirs_is_ours(path):
                    self._refuse(f"it deletes or changes {os.fsdecode(path)} before it trains")
        elif event in _STARTS:
            self._look_at_program(arguments)
        elif event == "os.kill" and arguments[1] and not _ours(arguments[0]):
            self._refuse("it ends other processes before it trains")

    def _theirs_is_ours(self, path: Any) -> bool:
        return self._is_own(os.path.realpath(os.fsdecode(path)))

    def _look_at_program(self, arguments: tuple[Any, ...]) -> None:
        program, rest = arguments[0], arguments[1] if len(arguments) > 1 else None
        if program is None and isinstance(rest, (list, tuple)) and rest:
            program = rest[0]
        text = os.fsdecode(program) if isinstance(program, (str, bytes, os.PathLike)) else str(program)
        name = os.path.basename(text.split()[0]) if text.split() else text
        if name not in _HARMLESS_PROGRAMS and text != sys.executable:
            self._refuse(f"it starts {name} before it trains")


def _ours(pid: int) -> bool:
    """Whether a process is one that we started: workers share our group."""
    try:
        return os.getpgid(pid) == os.getpgrp()
    except (OSError, AttributeError):
        return True  # it is gone
