"""Whether a device rests, by its power: for devices that never tell their utilization (WSL, some drivers and containers)."""

from __future__ import annotations

#: Idle cards draw 5 to 25 % of their limit: what drew more before training was not at rest.
REST_MOST = 0.3
#: Power within this factor of that before training: nothing runs (sensors and fans wander).
QUIET_POWER = 1.3
#: A context keeps the memory's clock up: up to this share of the way from rest to work (A100: 60 to 80 of 320 W).
REST_SHARE = 0.15
#: Cards that keep all clocks up with a context in place draw up to half of their power at work (T4: 27 of 70 W), the same all
#: the time: within 5 % or 3 W. Work comes and goes.
STILL_POWER = 0.5
STILL_SHARE, STILL_W = 0.05, 3.0


class RestTrack:
    """`since_s`: since when the device has been at rest, None while it works or nobody can tell."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self._rest_w: float | None = None  # lowest power before anything of ours ran
        self._still_w: float | None = None  # power at which it has stood still since `since_s`

    def learn(self, power_w: float, limit_w: float | None) -> None:
        """A reading from before training."""
        if limit_w is not None and power_w <= REST_MOST * limit_w:
            self._rest_w = power_w if self._rest_w is None else min(self._rest_w, power_w)

    def quiet(self, power_w: float) -> bool:
        """Whether the device draws no more than before training."""
        return self._rest_w is not None and power_w <= QUIET_POWER * self._rest_w

    def on_power(self, t_s: float, power_w: float, work_w: float | None) -> None:
        """A reading; `work_w` is the power at work, None where it is not known."""
        rest_w = self._rest_w
        if rest_w is not None and power_w <= max(QUIET_POWER * rest_w, rest_w + REST_SHARE * ((work_w or rest_w) - rest_w)):
            self.since_s = t_s if self.since_s is None else self.since_s
        elif work_w is None or power_w >= STILL_POWER * work_w:
            self.since_s = self._still_w = None
        elif self._still_w is None or abs(power_w - self._still_w) > max(STILL_W, STILL_SHARE * self._still_w):
            self.since_s, self._still_w = t_s, power_w
