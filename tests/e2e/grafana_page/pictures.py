"""Takes pictures of the dashboards over a real Prometheus with a made-up fleet's history, and fails on anything odd.

Run from the repository: `python tests/e2e/grafana_page/pictures.py [--out docs/pictures] [--only fleet] [--keep FOLDER]`.
Needs promtool and prometheus, chromium, and npm for the first build of the page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1]))

from integration.observe.history import build, prometheus_over  # noqa: E402

#: Panels that rightly show nothing in this fleet, with the reason.
EXPECTED_EMPTY: dict[str, dict[str, str]] = {
    "fleet": {},
    "run": {},
    "gpu": {},
    "monitor": {},
}
VIEWS = ("fleet", "run", "gpu", "monitor")
#: Dashboards about one run, and the run shown: the one with most to see.
OF_ONE_RUN = ("run", "gpu")
RUN = "gemma-sft-91be"
WIDTH = 1600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--only", choices=VIEWS)
    parser.add_argument("--themes", default="dark,light")
    parser.add_argument("--run", default=RUN, help="for the dashboards about one run")
    parser.add_argument("--keep", type=Path, help="keep the history in this folder and use it again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    build_page()
    problems: list[str] = []
    with history(options.keep) as (folder, end_s), prometheus_over(folder) as prom_url, serving(prom_url) as url:
        for name in [options.only] if options.only else VIEWS:
            for theme in options.themes.split(","):
                problems += take(url, name, theme, end_s, options.out, options.run)
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


def build_page() -> None:
    """`dist`, unless it is there and newer than its sources."""
    sources = [*HERE.glob("src/*"), HERE / "index.html", HERE / "vite.config.mjs", HERE / "package.json"]
    done = HERE / "dist" / "index.html"
    if done.is_file() and done.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return
    if not (HERE / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--legacy-peer-deps", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    subprocess.run(["npx", "vite", "build", "--logLevel", "warn"], cwd=HERE, check=True)


@contextlib.contextmanager
def history(keep: Path | None) -> Iterator[tuple[Path, float]]:
    if keep is not None and (keep / "end").is_file():
        yield keep, float((keep / "end").read_text())
        return
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainbudget-pictures-")))
        folder.mkdir(parents=True, exist_ok=True)
        end_s = time.time()
        end_s -= end_s % 15
        build(folder, end_s)
        (folder / "end").write_text(str(end_s))
        yield folder, end_s


@contextlib.contextmanager
def serving(prom_url: str) -> Iterator[str]:
    """The built page, the committed dashboards, and Prometheus under /prom: its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urllib.parse.urlsplit(self.path).path
            if path.startswith("/prom/"):
                self._pass_on(prom_url + self.path.removeprefix("/prom"))
                return
            file = ROOT / "grafana" / path.lstrip("/") if path.startswith("/dashboards/") else HERE / "dist" / path.lstrip("/")
            file = file / "index.html" if file.is_dir() else file
            kinds = {
                ".html": "text/html",
                ".js": "text/javascript",
                ".css": "text/css",
                ".json": "application/json",
                ".svg": "image/svg+xml",
            }
            if file.is_file():
                self._send(200, kinds.get(file.suffix, "application/octet-stream"), file.read_bytes())
            else:
                self._send(404, "text/plain", b"not found")

        def _pass_on(self, address: str) -> None:
            try:
                with urllib.request.urlopen(address, timeout=30) as answer:
                    self._send(200, "application/json", answer.read())
            except urllib.error.HTTPError as err:
                self._send(200, "application/json", err.read())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """The browser closes connections when it has its picture."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def take(url: str, name: str, theme: str, end_s: float, out: Path, run: str) -> list[str]:
    """One picture; what is wrong with it, in words."""
    board = json.loads((ROOT / "grafana" / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    query = {"d": name, "theme": theme, "from": f"{(end_s - 3 * 3600) * 1000:.0f}", "to": f"{end_s * 1000:.0f}"}
    if name in OF_ONE_RUN:
        query["var-run"] = run
    picture = out.resolve() / f"{name}-{theme}.png"
    command = [
        "node",
        "camera.mjs",
        shutil.which("chromium") or "chromium",
        f"{url}/?{urllib.parse.urlencode(query)}",
        str(picture),
    ]
    done = subprocess.run([*command, str(WIDTH)], cwd=HERE, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode != 0:
        return [f"{name} ({theme}): the camera failed: {done.stderr[-1500:]}"]
    found = json.loads(done.stdout.splitlines()[-1])
    return [f"{name} ({theme}): {text}" for text in problems_of(name, board, found, picture)]


def problems_of(name: str, board: dict[str, Any], found: dict[str, Any], picture: Path) -> Iterator[str]:
    yield from (f"page error: {text}" for text in found["errors"])
    yield from (
        f"unexpected 'No data' in {title!r}" for title in dict.fromkeys(found["empty"]) if title not in EXPECTED_EMPTY[name]
    )
    wanted = {panel["title"] for panel in board["panels"] if panel["type"] != "row"}
    yield from (f"panel {title!r} was never drawn" for title in sorted(wanted - set(found["panels"])))
    if picture.stat().st_size < 40_000:
        yield f"{picture.name} is nearly empty"


if __name__ == "__main__":
    raise SystemExit(main())
