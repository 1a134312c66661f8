"""How many examples hypothesis tries: few, and the same ones on every run, unless more are asked for.

`CSI_BRIDGE_EXAMPLES=10 pytest -m hypothesis` tries ten times as many, and other ones on each run. `make test-slow` asks
for four times as many.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_FACTOR = int(os.environ.get("CSI_BRIDGE_EXAMPLES", "1"))


def examples(number: int, *, steps: int = 50, shrink: bool = True) -> settings:
    """Settings for so many examples, each of at most so many steps. No deadline: the machine may be busy.

    `shrink`: whether a smaller example would tell more than the one that failed; of a random seed it would not.
    """
    return settings(
        max_examples=number * _FACTOR,
        stateful_step_count=steps,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
        derandomize=_FACTOR == 1,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
