"""Plain data as YAML for people: block style, long texts as literal blocks, everything else quoted as JSON does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*$")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})


def to_yaml(value: Any, *, comment: str = "") -> str:
    """`value` (dicts, lists, texts, numbers, None) as a YAML document, with a comment above."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(value, Mapping):
        out = []
        for key, item in value.items():
            out += _entry(f"{pad}{_scalar(str(key))}:", item, depth)
        return out
    if isinstance(value, Sequence) and not isinstance(value, str):
        out = []
        for item in value:
            if _is_block(item):
                inner = _lines(item, depth + 1)
                out += [f"{pad}- {inner[0].lstrip()}", *inner[1:]]
            else:
                out.append(f"{pad}- {_scalar(item)}")
        return out
    return [pad + _scalar(value)]


def _entry(head: str, item: Any, depth: int) -> list[str]:
    if _is_block(item):
        return [head, *_lines(item, depth + 1)]
    if isinstance(item, str) and ("\n" in item or '"' in item) and item == item.strip():
        pad = "  " * (depth + 1)
        return [f"{head} |-", *[f"{pad}{line}" if line else "" for line in item.splitlines()]]
    return [f"{head} {_scalar(item)}"]


def _is_block(item: Any) -> bool:
    return isinstance(item, (Mapping, list, tuple)) and len(item) > 0


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, Mapping):
        return "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
