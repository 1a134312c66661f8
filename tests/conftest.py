"""What all tests share."""

import asyncio.constants
import logging

from hypothesis import HealthCheck, settings

# In its debug mode asyncio warns of a callback that took 100 ms, which on a busy machine is any: no test means that.
logging.getLogger("asyncio").setLevel(logging.ERROR)

# And it keeps ten lines of the stack for every callback, a fifth of the suite's time. Whoever needs them sets it to 10.
vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 0

# Hypothesis allows an example 200 ms, which on a busy machine none is sure to get: no test asserts a time.
settings.register_profile("csi-bridge", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("csi-bridge")
