"""The dashboards in a real browser over a real Prometheus: no page error, no unexpected "No data", no blank chart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.observe.servers import needs

PAGE = Path(__file__).resolve().parent / "grafana_page"
MISSING = [name for name in ("chromium", "node", "npm") if shutil.which(name) is None]


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs("prometheus", "promtool")
@pytest.mark.skipif(bool(MISSING), reason="not installed: " + ", ".join(MISSING))
@pytest.mark.skipif(
    not (PAGE / "node_modules").is_dir(), reason="the page's packages are not there: npm ci in tests/e2e/grafana_page"
)
def test_every_dashboard_draws_in_both_themes(tmp_path: Path) -> None:
    command = [sys.executable, str(PAGE / "pictures.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(list(tmp_path.glob("*.png"))) == 8
