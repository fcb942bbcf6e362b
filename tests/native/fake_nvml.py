"""A scripted NVML for tests: the real pynvml on a machine without a GPU, with any value, error code or delay.

fake = FakeNvml(tmp_path, cards=2)
fake.load()                                       # this process; or subprocess.run(..., env=fake.env())
fake.card(0, util_gpu=97, power_mw=320_000)
fake.fail("nvmlDeviceGetPowerUsage", 15, card=1)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import pynvml

from native.build import build

GIB = 1 << 30
MIB = 1 << 20

#: A whole A100-SXM4-80GB at work, as its queries answer. Keys are those of `stub/state.h`.
A100: Mapping[str, object] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "compute_capability": "8.0",
    "mem_total": 85_899_345_920,
    "mem_reserved": 911_212_544,
    "mem_used": 20 * GIB,
    "util_gpu": 97,
    "util_mem": 55,
    "power_mw": 312_345,
    "power_limit_mw": 400_000,
    "power_default_limit_mw": 400_000,
    "energy_mj": 5_000_000_000,
    "temp": 61,
    "clock_gr": 1410,
    "clock_sm": 1410,
    "clock_mem": 1593,
    "clock_reasons": "0x4",
    "pcie_gen": 4,
    "pcie_width": 16,
    "pcie_gen_max": 4,
    "pcie_width_max": 16,
    "ecc_corrected": 3,
    "ecc_uncorrected": 0,
    "mig_mode": 0,
}


def uuid_of(card: int) -> str:
    return f"GPU-{card:08x}-1111-2222-3333-444444444444"


def slice_uuid_of(card: int, number: int) -> str:
    return f"MIG-{card:08x}-{number:04x}-5555-6666-777777777777"


class FakeNvml:
    """The state of the fake driver; every change is visible at the next NVML call of every process that uses it."""

    def __init__(self, folder: Path, cards: int = 1) -> None:
        self.path = folder / "nvml_state.txt"
        self.library = build()
        self._values: dict[str, object] = {
            "driver_version": "575.57.08",
            "nvml_version": "12.575.57.08",
            "cuda_driver_version": 12090,
            "device_count": cards,
        }
        self._values |= {f"*.{key}": value for key, value in A100.items()}
        self._values |= {f"{card}.uuid": uuid_of(card) for card in range(cards)}
        self._write()

    def env(self) -> dict[str, str]:
        """The environment of a process that shall find this driver."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), "FAKE_NVML_STATE": str(self.path)}

    def load(self) -> None:
        """Make this process's pynvml use this driver, whatever it used before."""
        os.environ["FAKE_NVML_STATE"] = str(self.path)
        self._library().fake_nvml_reset()
        _use(self._library())

    def unload(self) -> None:
        """Let this process's pynvml look for the system's library again."""
        os.environ.pop("FAKE_NVML_STATE", None)
        _use(None)

    def calls(self, function: str) -> int:
        """How often this process has called a C function since `load`."""
        count = self._library().fake_nvml_calls
        count.restype = ctypes.c_ulong
        return int(count(function.encode()))

    def set(self, values: Mapping[str, object]) -> None:
        """Set raw keys of `stub/state.h`; a value of None removes the key."""
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        self._write()

    def card(self, card: int, **values: object) -> None:
        """Set values of one card."""
        self.set({f"{card}.{key}": value for key, value in values.items()})

    def without(self, *keys: str) -> None:
        """Make values unsupported on all cards."""
        self.set({f"*.{key}": None for key in keys})

    def fail(self, function: str, code: int, card: int | None = None) -> None:
        """Let a C function (or `*`, with a card) answer an error code; 0 heals it."""
        self.set({self._key("ret", function, card): code or None})

    def delay(self, function: str, milliseconds: float, card: int | None = None) -> None:
        self.set({self._key("delay_ms", function, card): milliseconds or None})

    def split(self, card: int, slices: int, bytes_each: int) -> None:
        """Turn MIG on: equal slices, GPU instances numbered from 1."""
        values: dict[str, object] = {f"{card}.mig_mode": 1}
        for number in range(slices):
            prefix = f"{card}.mig.{number}"
            values |= {
                f"{prefix}.uuid": slice_uuid_of(card, number),
                f"{prefix}.name": f"{A100['name']} MIG 1g.10gb",
                f"{prefix}.mem_total": bytes_each,
                f"{prefix}.mem_used": 1 * GIB,
                f"{prefix}.compute_capability": "8.0",
                f"{prefix}.gi": number + 1,
                f"{prefix}.ci": 0,
            }
        self.set(values)

    @staticmethod
    def _key(what: str, function: str, card: int | None) -> str:
        return f"{what}.{function}" if card is None else f"{card}.{what}.{function}"

    def _library(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.library), mode=ctypes.RTLD_LOCAL)

    def _write(self) -> None:
        unfinished = self.path.with_suffix(f".{os.getpid()}")
        unfinished.write_text("".join(f"{key}={value}\n" for key, value in self._values.items()), encoding="utf-8")
        unfinished.replace(self.path)


def _use(library: ctypes.CDLL | None) -> None:
    # pynvml has no public way to choose its library or to forget one.
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0
