"""What a bug report needs to know of the machine: panal and Python, the system, the llama.cpp build."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from node.device.asking import ask

MAX_TEXT = 256 << 10
"""Bytes of a config, or of a file in /proc, or of what a command says."""

LLAMA_SECONDS = 60.0
"""For llama.cpp to be loaded: from a slow disk, beside whatever is wrong."""

CPU_FLAGS = (
    "sse3", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "f16c", "fma", "bmi2", "avx512f", "avx512bw",
    "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8",
    "asimd", "asimddp", "asimdhp", "i8mm", "sve",
)  # fmt: skip
"""Those by which llama.cpp chooses its kernels."""

Report = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def panal_facts() -> Report:
    packages = {}
    for wanted in requires("panal") or []:
        name = _NAME.match(wanted)
        if name is None or "extra ==" in wanted:
            continue
        try:
            packages[name[0]] = version(name[0])
        except PackageNotFoundError:
            packages[name[0]] = "missing"
    return {
        "version": version("panal"),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": packages,
    }


def system_facts() -> Report:
    info = _fields("/proc/cpuinfo")
    flags = set((info.get("flags") or info.get("Features") or "").split())
    memory = _fields("/proc/meminfo")
    libc = platform.libc_ver()
    return {
        "platform": platform.platform(),
        "distribution": _distribution(),
        "machine": platform.machine(),
        "libc": " ".join(libc).strip() or "unknown",
        "cpu": info.get("model name") or platform.processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_flags": sorted(flags.intersection(CPU_FLAGS)),
        "memory": memory.get("MemTotal", ""),
        "memory_available": memory.get("MemAvailable", ""),
        "locale": {name: os.environ.get(name, "") for name in ("LANG", "LC_ALL") if os.environ.get(name)},
    }


def llama_facts(path: Path | None) -> Report:
    """In a process of its own: a library that does not fit may crash the one that loads it."""
    code = (
        "import sys; from node.engine import library; "
        "found = library.load(sys.argv[1] or None); print(found.path); print(found.system_info())"
    )
    command = [sys.executable, "-P", "-c", code, "" if path is None else str(path)]
    done = ask(command, 60)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"error": said[-1] if said else f"ended with code {done.returncode}"}
    where, _, info = done.stdout.partition("\n")
    return {"library": where, "system_info": info.strip()}


def read_text(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _fields(path: str) -> dict[str, str]:
    """The first value of each name in a file of "name : value" lines."""
    found: dict[str, str] = {}
    for line in read_text(Path(path)).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""
