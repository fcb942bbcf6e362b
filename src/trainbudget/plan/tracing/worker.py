"""The child process behind ``trace_in_subprocess``: reads a request file, writes a trace file; one line on stderr says why it
could not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from trainbudget.errors import ConfigError
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.tracing.subprocess import TraceRequest
from trainbudget.plan.tracing.trace import encode_trace


def main(arguments: list[str]) -> int:
    """Exit code: 0 traced, 2 bad configuration, 3 cannot be traced."""
    from trainbudget.plan.tracing.from_config import trace_config

    asked, answered = map(Path, arguments)
    request = msgspec.msgpack.decode(asked.read_bytes(), type=TraceRequest)
    try:
        trace = trace_config(request.model_config, request.spec, request.target)
    except ConfigError as exc:
        return _fail("config", exc, 2)
    except TraceFailed as exc:
        return _fail("failed", exc, 3)
    answered.write_bytes(encode_trace(trace))
    return 0


def _fail(kind: str, error: Exception, code: int) -> int:
    sys.stderr.write(f"trainbudget-{kind}: {' '.join(str(error).split())}\n")
    return code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # skip interpreter shutdown: there is nothing to save, and a large model takes seconds to tear down
