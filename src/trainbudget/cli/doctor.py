"""`trainbudget doctor`: why is there no GPU data, and what would be watched. Asks, changes nothing."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainbudget.cli import NO, OK

#: A driver that has not answered by then is stuck.
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line: what was looked at, whether it is well (None = neither good nor bad), what was seen, what to do."""

    name: str
    ok: bool | None
    seen: str
    advice: str = ""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="say why there is no GPU data, and what would be watched",
        description="Checks the driver, the devices of this process, the framework, the record, the metrics page and the "
        "price. Exit code 3 when there is no GPU data.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
    parser.add_argument("--backend", default=None, metavar="NAME", help="look through this backend (default: as configured)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from trainbudget.config import load
    from trainbudget.live.assembly import finding_names

    warnings: list[str] = []
    settings = load({"backend": args.backend}, warn=warnings.append, findings=finding_names())
    gpu_checks, facts = _gpu_checks(settings.backend)
    checks = [
        *(Check(name="settings", ok=False, seen=text, advice="correct the variable or file") for text in warnings),
        *gpu_checks,
        *_framework_checks(),
        _record_check(settings),
        _port_check(settings),
        _price_check(settings, facts),
    ]
    has_gpu = bool(facts.get("gpus"))
    if args.json:
        print(json.dumps({"ok": has_gpu, "checks": [asdict(c) for c in checks], **facts}, allow_nan=False))
    else:
        for check in checks:
            mark = {True: "ok", False: "!!", None: "--"}[check.ok]
            print(f"  {mark}  {check.name:<14}{check.seen}" + (f"\n{'':<20}{check.advice}" if check.advice else ""))
    return OK if has_gpu else NO


_PROBE = """
import json, os, sys
from trainbudget.errors import GpuUnavailableError
from trainbudget.gpu import open_backend
from trainbudget.gpu.mapping import map_devices
out = {}
try:
    backend = open_backend(sys.argv[1])
    if backend is None:
        out = {"error": "none", "text": "switched off (backend none)"}
    else:
        gpus = backend.open()
        mapping = map_devices(backend.identities, visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
                              order=os.environ.get("CUDA_DEVICE_ORDER"), torch_uuids=None, local_rank=None,
                              local_world_size=None)
        out = {"backend": backend.name, "driver": backend.driver_version, "ambiguous": mapping.ambiguous,
               "remark": mapping.remark, "gpus": []}
        for gpu in gpus:
            reading = backend.read(gpu.gpu, now_s=0.0)
            out["gpus"].append({"gpu": gpu.gpu, "uuid": gpu.uuid, "name": gpu.name, "limit_bytes": gpu.memory_limit_bytes
                                or gpu.memory_total_bytes, "used_bytes": reading.memory_used_bytes,
                                "owned": gpu.gpu in mapping.owned, "visible": gpu.gpu in mapping.visible,
                                "refused": reading.errors or {}})
        backend.close()
except GpuUnavailableError as err:
    out = {"error": err.code, "text": str(err)}
print(json.dumps(out))
"""

_ADVICE = {
    "library_not_found": "libnvidia-ml.so.1 is not here. In a container: start it with the NVIDIA runtime (--gpus all).",
    "driver_mismatch": "The driver was upgraded under a running system: restart the container or reboot the host.",
    "permission": "This user may not open /dev/nvidia*: check device permissions and the container's device rules.",
    "cpu_build": "torch is a CPU build: install a CUDA build to train on a GPU.",
    "no_gpu": "The driver works and shows no device: check CUDA_VISIBLE_DEVICES, the scheduler's allocation and MIG.",
    "stuck": "A driver call does not return: look for Xid messages in the kernel log; a reboot may be needed.",
}


def _gpu_checks(backend: str) -> tuple[list[Check], dict[str, Any]]:
    """Ask the driver in a child process: a stuck one must not hang the doctor."""
    from trainbudget.wording.numbers import size

    try:
        probe = subprocess.run([sys.executable, "-c", _PROBE, backend], capture_output=True, timeout=PATIENCE_S, check=False)
        answer: dict[str, Any] = json.loads(probe.stdout or b"{}")
        if not answer:
            lines = probe.stderr.decode(errors="replace").strip().splitlines()
            answer = {"error": "unknown", "text": lines[-1] if lines else "no answer"}
    except subprocess.TimeoutExpired:
        answer = {"error": "stuck", "text": f"the driver has not answered within {PATIENCE_S:.0f} s"}
    if "error" in answer:
        return [Check(name="driver", ok=False, seen=answer["text"], advice=_ADVICE.get(answer["error"], ""))], {
            "gpus": [], "error": answer["error"],
        }  # fmt: skip
    driver = f"{answer['backend']}, driver {answer['driver'] or 'unknown'}"
    checks = [Check(name="driver", ok=True, seen=driver + (" (simulated)" if answer["backend"] == "mock" else ""))]
    if not answer["gpus"]:
        checks.append(Check(name="devices", ok=False, seen="none", advice=_ADVICE["no_gpu"]))
    for gpu in answer["gpus"]:
        whose = "ours" if gpu["owned"] else "visible" if gpu["visible"] else "not ours"
        used = f"{size(gpu['used_bytes'])} of {size(gpu['limit_bytes'])} used"
        refused = f"; does not tell: {', '.join(sorted(gpu['refused']))}" if gpu["refused"] else ""
        checks.append(
            Check(
                name=f"GPU {gpu['gpu']}",
                ok=True if gpu["owned"] else None,
                seen=f"{gpu['name'] or 'unknown card'} · {whose} · {used}{refused}",
            )
        )
    for text in (answer["ambiguous"], answer["remark"]):
        if text:
            checks.append(Check(name="mapping", ok=False, seen=text))
    return checks, {"gpus": answer["gpus"]}


def _framework_checks() -> list[Check]:
    from importlib import metadata

    checks = []
    for name in ("torch", "transformers", "lightning", "accelerate"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            checks.append(Check(name=name, ok=None, seen="not installed"))
            continue
        cpu_build = name == "torch" and version.endswith("+cpu")
        checks.append(
            Check(name=name, ok=None if cpu_build else True, seen=version, advice=_ADVICE["cpu_build"] if cpu_build else "")
        )
    return checks


def _record_check(settings: Any) -> Check:
    parent = Path(settings.directory or "trainbudget_runs")
    probe = parent if parent.exists() else parent.parent
    if os.access(probe, os.W_OK):
        return Check(name="record", ok=True, seen=str(parent))
    return Check(name="record", ok=False, seen=f"{parent} cannot be written", advice="set TRAINBUDGET_DIR")


def _port_check(settings: Any) -> Check:
    import socket

    from trainbudget.config import parse_listen

    listen = parse_listen(settings.listen)
    if listen is None:
        return Check(name="metrics", ok=None, seen="switched off")
    with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(listen)
        except OSError as err:
            return Check(name="metrics", ok=None, seen=f"{settings.listen}: {err.strerror}; the next free port is taken")
    return Check(name="metrics", ok=True, seen=f"http://{settings.listen}/metrics")


def _price_check(settings: Any, facts: dict[str, Any]) -> Check:
    from trainbudget.events import Gpu
    from trainbudget.live.assembly import price_of
    from trainbudget.wording.numbers import money

    gpus = tuple(Gpu(gpu=g["gpu"], name=g["name"], owned=g["owned"]) for g in facts["gpus"])
    price = price_of(settings, gpus, 0.0)
    if price is None:
        return Check(name="price", ok=None, seen="none, so GPU-hours and no money", advice="set price='2.49 USD/h'")
    return Check(name="price", ok=True, seen=f"{money(price.per_gpu_hour, price.currency)}/h, {price.source} {price.date or ''}")
