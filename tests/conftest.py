"""What all tests share."""

import logging

# In its debug mode asyncio warns of a callback that took 100 ms, which on a busy machine is any: no test means that.
logging.getLogger("asyncio").setLevel(logging.ERROR)
