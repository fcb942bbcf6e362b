"""Builds the fake `libnvidia-ml.so.1` from `stub/*.c` and the list of functions that the installed pynvml knows.

Every function that pynvml knows and no source file defines is generated to answer NVML_ERROR_NOT_SUPPORTED (or the code
that the scripted state forces), so that any NVML client meets a library with all its symbols.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
from pathlib import Path

import pynvml

LIBRARY = "libnvidia-ml.so.1"
_HERE = Path(__file__).parent
_SOURCES = _HERE / "stub"
_FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def known_functions() -> set[str]:
    """C functions of NVML that the installed pynvml can call."""
    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    return set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source))


def implemented_functions() -> set[str]:
    """C functions of NVML that the fake really answers."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.glob("*.c")))
    return set(re.findall(r"^API .*?\b(nvml\w+)\(", text, re.M)) | set(re.findall(r"^NUMBER_OF_CARD\((nvml\w+),", text, re.M))


def generated_source() -> str:
    """C text of the functions that only refuse."""
    lines = ['#include "fake.h"', ""]
    for function in sorted(known_functions() - implemented_functions()):
        lines.append(f"API ret_t {function}(void *first) {{ ENTER(first, NEEDS_INIT); LEAVE(NOT_SUPPORTED); }}")
    return "\n".join(lines) + "\n"


def build(folder: Path | None = None) -> Path:
    """The path of the library, compiled at most once for each state of its sources, whichever process comes first."""
    refusals = generated_source()
    sources = sorted(_SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(refusals.encode() + b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = (folder or _HERE / "build") / digest / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(target, refusals)
    return target


def _compile(target: Path, refusals: str) -> None:
    generated = target.parent / "refusals.c"
    generated.write_text(refusals, encoding="utf-8")
    unfinished = target.with_suffix(".unfinished")
    compiler = os.environ.get("CC", "cc")
    # No soname: the loader must not take it for the system's library in a process that only loaded it by its path.
    command = [compiler, *_FLAGS, f"-I{_SOURCES}", "-o", str(unfinished)]
    command += [str(path) for path in sorted(_SOURCES.glob("*.c"))] + [str(generated), "-lpthread"]
    subprocess.run(command, check=True)
    unfinished.replace(target)


if __name__ == "__main__":
    print(build())
