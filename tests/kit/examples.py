"""The number of examples that hypothesis tries: a third, and the same on every run, unless more are requested.

`CSI_BRIDGE_EXAMPLES=10 pytest -m hypothesis` tries ten times the number, different ones on each run. `make test-slow`
requests four times the number.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_FACTOR = int(os.environ.get("CSI_BRIDGE_EXAMPLES", "0"))


def examples(number: int, *, steps: int = 50, shrink: bool = True, whole: bool = False) -> settings:
    """Return settings for `number` examples of at most `steps` steps. No deadline: the machine may be busy.

    `shrink`: whether to search for a smaller failing example. For a random seed a smaller one tells no more.
    `whole`: never only a third, for a slow test.
    """
    return settings(
        max_examples=number * _FACTOR or (number if whole else max(10, number // 3)),
        stateful_step_count=steps,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
        derandomize=not _FACTOR,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
