"""What the Run dashboard's panels choose by."""

from __future__ import annotations

ONE = {"run": "$run"}
RANKS = {"run": "$run", "rank": "=~$rank"}
MONEY = {"run": "$run", "currency": "$currency"}
#: Counters move up to two minutes late, when a bucket is final: a shorter window would show jumps.
WINDOW = "5m"
#: How far ahead the dashed line of the memory panel looks.
AHEAD_S = 600
#: Buckets that belong to a step; phases between steps would only hide them.
STEP_BUCKETS = "=~compute|communication|data_wait|host_gap|padding|optimizer_offload|warmup"
