"""The table of GPUs: memory a process can use, peak FLOP/s, bandwidth, links; and finding a card by any of its names.

Values live in `data/gpus.json`, each with its source; `GpuSpec.unverified` names those no primary source confirmed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from trainbudget.errors import ConfigError

GIB = 1024**3
MIB = 1024**2

#: What each training precision multiplies in, best first; a card without the rate falls to the next (emulated bf16: fp32 rate).
_RATE_OF_PRECISION = {
    "bf16": ("bf16", "fp32"),
    "bf16_pure": ("bf16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "tf32": ("tf32", "fp32"),
    "fp32": ("fp32", "bf16"),  # TPUs publish no fp32 rate
    "fp8": ("fp8", "bf16"),
}

#: Memory further off than this is another variant of the card (driver reserve and ECC take up to 7 %; A100 40 to 80 GB is 2x).
_MEMORY_TOLERANCE = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator. Memory in bytes, rates per second; `None` = not published or not applicable."""

    name: str
    vendor: str  # nvidia, amd, google
    nvml_names: tuple[str, ...]
    aliases: tuple[str, ...]
    price_key: str | None
    compute_capability: tuple[int, int] | None
    architecture: str | None
    memory_limit_bytes: float | None
    nvml_total_bytes: float | None
    peak_flops: dict[str, float]
    bandwidth_bytes_per_s: float
    tdp_w: float | None
    nvlink_bytes_per_s: float | None  # both directions together, per GPU
    pcie_gen: int | None
    pcie_width: int | None
    note: str | None
    unverified: tuple[str, ...]
    sources: dict[str, object]
    mig_fraction: float | None = None  # compute slices over 7

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 80 for 8.0."""
        return None if self.compute_capability is None else self.compute_capability[0] * 10 + self.compute_capability[1]

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """One direction of the card's own PCIe link."""
        per_lane = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # after line coding, PCI-SIG
        if self.pcie_gen is None or self.pcie_width is None:
            return None
        return per_lane.get(self.pcie_gen, 0.0) * self.pcie_width or None

    def supports(self, precision: str) -> bool:
        """Whether the card multiplies natively in this precision."""
        return _RATE_OF_PRECISION[precision][0] in self.peak_flops

    def peak(self, precision: str) -> float | None:
        """Peak dense FLOP/s for a training precision (fp32, tf32, fp16, bf16, bf16_pure, fp8)."""
        for rate in _RATE_OF_PRECISION[precision]:
            if rate in self.peak_flops:
                return self.peak_flops[rate]
        return None


@lru_cache(maxsize=1)
def gpus() -> tuple[GpuSpec, ...]:
    """Every accelerator of the table."""
    text = resources.files("trainbudget.plan").joinpath("data/gpus.json").read_text(encoding="utf-8")
    return tuple(_spec_of(row) for row in json.loads(text))


def _spec_of(row: dict[str, object]) -> GpuSpec:
    def scaled(key: str, factor: float) -> float | None:
        value = row[key]
        return None if value is None else float(value) * factor  # type: ignore[arg-type]

    capability = row["compute_capability"]
    return GpuSpec(
        name=str(row["name"]),
        vendor=str(row["vendor"]),
        nvml_names=tuple(row["nvml_names"]),  # type: ignore[arg-type]
        aliases=tuple(row["aliases"]),  # type: ignore[arg-type]
        price_key=row["price_key"],  # type: ignore[arg-type]
        compute_capability=None if capability is None else tuple(capability),  # type: ignore[arg-type]
        architecture=row["architecture"],  # type: ignore[arg-type]
        memory_limit_bytes=scaled("memory_gib", GIB),
        nvml_total_bytes=scaled("nvml_total_mib", MIB),
        peak_flops={k: v * 1e12 for k, v in row["peak_tflops"].items()},  # type: ignore[attr-defined]
        bandwidth_bytes_per_s=float(row["bandwidth_gbs"]) * 1e9,  # type: ignore[arg-type]
        tdp_w=scaled("tdp_w", 1),
        nvlink_bytes_per_s=scaled("nvlink_gbs", 1e9),
        pcie_gen=row["pcie_gen"],  # type: ignore[arg-type]
        pcie_width=row["pcie_width"],  # type: ignore[arg-type]
        note=row["note"],  # type: ignore[arg-type]
        unverified=tuple(row["unverified"]),  # type: ignore[arg-type]
        sources=row["sources"],  # type: ignore[arg-type]
    )


_BRANDS = {"nvidia", "tesla", "geforce", "amd", "instinct", "google", "generation", "blackwell", "edition", "server"}


_HARMLESS = re.compile(r"gpu|sxm\d?|pcie|hbm\w*|oam|nvlink|\d+gi?b")


def _words(text: str) -> tuple[str, ...]:
    return tuple(w for w in re.split(r"[^a-z0-9]+", text.lower()) if w and w not in _BRANDS)


@lru_cache(maxsize=1)
def _names() -> dict[tuple[str, ...], GpuSpec]:
    names: dict[tuple[str, ...], GpuSpec] = {}
    for spec in gpus():
        for name in (spec.name, *spec.nvml_names, *spec.aliases):
            names.setdefault(_words(name), spec)
    return names


def find_gpu(name: str, memory_total_bytes: float | None = None) -> GpuSpec | None:
    """The card of this NVML or marketing name; None when unknown or ambiguous (`A100` alone may have 40 or 80 GB).

    `memory_total_bytes` (as NVML tells it) chooses among variants and refuses a card whose memory contradicts the table.
    Whole words only, longest name first: `H200` never matches `H20`, `A100` never `A10`, `L40S` never `L4`.
    """
    words = _words(name)
    if "mig" in words:
        return _mig_slice(name)
    spec = _names().get(words) or _joined_match("".join(words)) or _longest_inside(words)
    if spec is None:
        candidates = _same_family(words)
        if memory_total_bytes is None or not candidates:
            return None
        spec = min(candidates, key=lambda s: abs((s.nvml_total_bytes or s.memory_limit_bytes or 0) - memory_total_bytes))
    return spec if _memory_agrees(spec, words, memory_total_bytes) else None


def require_gpu(name: str) -> GpuSpec:
    """The card of this name.

    Raises:
        ConfigError: unknown or ambiguous, naming the nearest known ones.
    """
    spec = find_gpu(name)
    if spec is not None:
        return spec
    words = _words(name)
    near = [s.name for s in _same_family(words)] or difflib.get_close_matches(name, [s.name for s in gpus()], n=3, cutoff=0.5)
    hint = f": did you mean {_either(near)}?" if near else "; `trainbudget plan --list-gpus` names all"
    raise ConfigError(f"unknown GPU {name!r}{hint}")


def _either(names: Iterable[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} or {last}" if head else last


def _joined_match(joined: str) -> GpuSpec | None:
    """Names typed without separators: `rtx4090`, `a10080gb`."""
    hits = {id(s): s for w, s in _names().items() if "".join(w) == joined}
    return next(iter(hits.values())) if len(hits) == 1 else None


def _longest_inside(words: tuple[str, ...]) -> GpuSpec | None:
    """The longest known name whose words stand together in this one, when the rest only says form factor or memory.

    Any other word makes another product: `RTX 4090 Laptop GPU`, `RTX 4090 D`, `GRID A100-10C`.
    """
    for known in sorted(_names(), key=lambda w: (-len(w), -len("".join(w)))):
        for i in range(len(words) - len(known) + 1):
            if words[i : i + len(known)] == known:
                rest = (*words[:i], *words[i + len(known) :])
                return _names()[known] if all(_HARMLESS.fullmatch(w) for w in rest) else None
    return None


def _same_family(words: tuple[str, ...]) -> list[GpuSpec]:
    """Cards whose first word is this name's: `A100` finds its four variants."""
    if not words:
        return []
    return [s for s in gpus() if words[0] == _words(s.name)[0] and words[0] not in ("rtx", "tpu")]


def _memory_agrees(spec: GpuSpec, words: tuple[str, ...], memory_total_bytes: float | None) -> bool:
    """Whether neither the measured memory nor an `NNgb` in the name contradicts the card."""
    known = spec.nvml_total_bytes or spec.memory_limit_bytes
    if known is None:
        return True
    if memory_total_bytes is not None:
        return abs(memory_total_bytes / known - 1) <= _MEMORY_TOLERANCE
    if any(words == _words(n) for n in (spec.name, *spec.nvml_names, *spec.aliases)):
        return True
    told = [int(m.group(1)) * GIB for w in words if (m := re.fullmatch(r"(\d+)gi?b?", w)) and len(m.group(0)) > len(m.group(1))]
    return all(abs(t / known - 1) <= _MEMORY_TOLERANCE for t in told)


def _mig_slice(name: str) -> GpuSpec | None:
    """A MIG slice: the parent's rates by compute slices of 7. Its memory is unknown until the process tells it."""
    parent_name, _, profile = name.partition("MIG")
    parent, match = find_gpu(parent_name.strip()), re.search(r"(\d)g\.(\d+)gb", profile.lower())
    if parent is None or match is None:
        return None
    share = int(match.group(1)) / 7
    return replace(
        parent,
        name=f"{parent.name} MIG {match.group(0)}",
        memory_limit_bytes=None,
        nvml_total_bytes=None,
        peak_flops={k: v * share for k, v in parent.peak_flops.items()},
        bandwidth_bytes_per_s=parent.bandwidth_bytes_per_s * share,
        nvlink_bytes_per_s=None,
        unverified=(*parent.unverified, "memory_gib", "peak_tflops", "bandwidth_gbs"),
        mig_fraction=share,
    )
