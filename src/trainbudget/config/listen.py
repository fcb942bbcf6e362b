"""Where to listen: `host:port` and its shorter forms."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainbudget.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9837
DEFAULT_LISTEN = f"{DEFAULT_HOST}:{DEFAULT_PORT}"

_LISTEN = re.compile(
    r"(?:(?P<only_port>[0-9]{1,5})|(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z_][\w.-]*|[0-9]+(?:\.[0-9]+){3}))?(?::(?P<port>[0-9]{1,5}))?)",
    re.ASCII,
)


class Listen(NamedTuple):
    """Where to listen; port 0 takes any free one."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT


def parse_listen(text: str) -> Listen | None:
    """`host:port`, `:port`, `port`, `[::1]:port` or `host`; `off` or nothing is None.

    Raises:
        ConfigError: it is none of these.
    """
    text = text.strip()
    if text.lower() in ("off", "none", "false", "no", ""):
        return None
    match = _LISTEN.fullmatch(text)
    port = (match["port"] or match["only_port"] or "") if match else ""
    host = (match["six"] or match["host"] or DEFAULT_HOST) if match else ""
    # A name's parts are 1 to 63 characters (RFC 1035, 2.3.4); others fail deep inside the resolver.
    named = ":" in host or all(0 < len(part) <= 63 for part in host.removesuffix(".").split("."))
    if match is None or not named or (port and int(port) > 65535):
        raise ConfigError(f"listen: {text[:80]!r} is not host:port or 'off'; write for example {DEFAULT_LISTEN}")
    return Listen(host, int(port) if port else DEFAULT_PORT)
