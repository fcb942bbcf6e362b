"""A script that compiles its model is traced as eager code, and that is known; what libraries compile at import says nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trainbudget.plan.script.host import tame_libraries  # noqa: E402
from trainbudget.plan.simulated_device.cuda import Patches  # noqa: E402


class Tamed:
    def __init__(self) -> None:
        self.asked = 0
        self.patches = Patches()
        tame_libraries(self.patches, self.count)

    def count(self) -> None:
        self.asked += 1


def step_of_the_script() -> None:
    pass


def step_of_a_library() -> None:
    pass


def test_who_asks_for_compilation() -> None:
    tamed, model = Tamed(), torch.nn.Linear(2, 2)
    try:
        assert torch.compile(model) is model
        assert tamed.asked == 1
        model.compile()
        assert tamed.asked == 2
        step_of_the_script.__module__ = "__main__"
        assert torch.compile(step_of_the_script) is step_of_the_script
        assert tamed.asked == 3
        assert torch.compile(mode="max-autotune")(step_of_a_library) is step_of_a_library
        assert torch.compile(step_of_a_library) is step_of_a_library
        assert tamed.asked == 3
    finally:
        tamed.patches.put_back()
