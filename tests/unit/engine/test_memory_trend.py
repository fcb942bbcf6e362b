"""Trends: robust, significant, and careful about where they lead."""

from __future__ import annotations

import math
import random

import pytest

from trainbudget.engine.forecast import Trend, line_through, still_rising, trend

XS = [float(n) for n in range(40)]


def test_a_line_is_found_through_outliers():
    ys = [10.0 + 2.0 * x for x in XS]
    for place in (3, 17, 30):
        ys[place] += 500.0
    line = trend(XS, ys)
    assert line is not None
    assert line.slope == pytest.approx(2.0, abs=0.05)
    assert line.low <= 2.0 <= line.high
    assert line.rising
    assert not line.falling


def test_noise_is_no_trend():
    # 3.3 sigma, one-sided: one in 2000 of independent series; 3 of 2000 would be a bad estimate of the variance.
    draw = random.Random(5)
    rising = sum(1 for _ in range(2000) if (t := trend(XS, [draw.gauss(0.0, 1.0) for _ in XS])) is not None and t.rising)
    assert rising <= 4


@pytest.mark.parametrize("points", [0, 1, 5])
def test_too_few_points_are_no_trend(points):
    assert trend(XS[:points], XS[:points]) is None
    assert line_through(list(zip(XS[:points], XS[:points], strict=True))) is None


def test_no_spread_is_no_trend():
    assert trend([3.0] * 20, XS[:20]) is None


def test_a_line_meets_its_limit_between_low_and_high():
    draw = random.Random(2)
    line = trend(XS, [5.0 + 0.5 * x + draw.gauss(0.0, 0.3) for x in XS])
    assert line is not None
    met = line.reaches(50.0)
    assert met is not None
    at, low, high = met
    assert low < at < high
    assert low <= 90.0 <= high


def test_how_far_the_limit_is_known_widens_the_interval():
    line = Trend(1.0, 0.99, 1.01, 100.0, 100.0, 0.0, 9.0, 40)
    sharp, blunt = line.reaches(200.0), line.reaches(200.0, error=10.0)
    assert sharp is not None
    assert blunt is not None
    assert blunt[0] == sharp[0] == 200.0
    assert blunt[1] == pytest.approx(100 + 90 / 1.01)
    assert blunt[2] == pytest.approx(100 + 110 / 0.99)


def test_a_falling_line_meets_a_lower_limit_and_never_a_higher_one():
    line = trend(XS, [100.0 - x for x in XS])
    assert line is not None
    assert line.falling
    met = line.reaches(0.0)
    assert met is not None
    assert met[0] == pytest.approx(100.0)
    assert line.reaches(200.0) is None


def test_an_uncertain_slope_may_never_get_there():
    met = Trend(0.1, -0.1, 0.3, 0.0, 0.0, 0.0, 3.5, 20).reaches(10.0)
    assert met is not None
    assert met[2] == math.inf


@pytest.mark.parametrize(
    ("constant", "share", "rising"),
    [(1e9, 0.75, True), (60.0, 0.75, True), (20.0, 0.75, False), (20.0, 0.4, True), (8.0, 0.4, False)],
)
def test_what_fills_does_not_rise_for_ever(constant, share, rising):
    ys = [constant * (1.0 - math.exp(-x / constant)) for x in XS]
    assert still_rising(XS, ys, share=share) is rising


def test_pairs_need_no_order():
    pairs = [(x, 3.0 + 4.0 * x) for x in XS]
    random.Random(1).shuffle(pairs)
    line = line_through(pairs)
    assert line is not None
    assert line.slope == pytest.approx(4.0)
    assert line.tau == pytest.approx(1.0)
    value, low, high = line.at(100.0)
    assert value == pytest.approx(403.0)
    assert low <= value <= high


def test_pairs_without_relation_have_no_rank_correlation():
    draw = random.Random(3)
    line = line_through([(draw.random(), draw.random()) for _ in range(60)])
    assert line is not None
    assert abs(line.tau) < 0.3
