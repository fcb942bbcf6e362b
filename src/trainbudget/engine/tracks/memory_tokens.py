"""Peak memory against the length of the batch: pairs from lines whose peak is dated, kept in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainbudget.engine.timeline import Timeline

#: Pairs kept; when full, every other one is dropped (the extremes are kept apart).
MOST = 256


class TokenPeaks:
    """(longest sequence in tokens, tokens of a micro-batch, peak bytes) of the steps since the previous line.

    A peak belongs to the longest batch of its interval. `highest` is the highest peak, `longest` the most tokens seen.
    """

    def __init__(self) -> None:
        self.records_only = False  # pairs come only when a counter that is never reset rises: few, all on the upper edge
        self.by_sequence: list[tuple[float, float]] = []
        self.by_batch: list[tuple[float, float]] = []
        self.total = 0
        self.longest_sequence = 0.0
        self.longest_batch = 0.0
        self.highest = 0.0

    def take(self, since_s: float, peak: float, timeline: Timeline) -> None:
        sequence = batch = 0.0
        for record in reversed(timeline.steps.recent):
            event = record.event
            if event.t_s <= since_s:
                break
            if event.max_sequence_tokens:
                sequence = max(sequence, event.max_sequence_tokens)
            elif event.tokens and event.samples:
                sequence = max(sequence, event.tokens / event.samples)
            if event.tokens:
                batch = max(batch, event.tokens / max(1, event.micro_steps or 1) / record.count)
        self.highest = max(self.highest, peak)
        if sequence:
            self.longest_sequence = max(self.longest_sequence, sequence)
            _keep(self.by_sequence, (sequence, peak))
        if batch:
            self.longest_batch = max(self.longest_batch, batch)
            _keep(self.by_batch, (batch, peak))
        if sequence or batch:
            self.total += 1


def _keep(pairs: list[tuple[float, float]], pair: tuple[float, float]) -> None:
    pairs.append(pair)
    if len(pairs) > MOST:
        pairs.sort()
        del pairs[1:-1:2]
