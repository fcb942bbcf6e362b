"""`python -m trainbudget.render` writes every generated file, `--check` only says which are stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainbudget.render import generated


def main(arguments: list[str] | None = None) -> int:
    """0 all fresh or written, 3 stale files with `--check`, 2 not in a checkout."""
    parser = argparse.ArgumentParser(prog="python -m trainbudget.render", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 when a file is stale")
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout (default: the current folder)")
    options = parser.parse_args(arguments)
    root: Path = options.root
    if not (root / "pyproject.toml").is_file():
        sys.stderr.write(f"{root.resolve()} is no checkout of trainbudget: there is no pyproject.toml\n")
        return 2
    stale = []
    for name, make in generated().items():
        path = root / name
        text = make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{'stale' if options.check else 'written'}: {name}\n")
    return 3 if options.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
