"""The program of a vendor's driver that answers each CreateVolume after another delay, with success or an error.

python -m tests.kit.failing_vendor SOCKET
"""

import random
import signal
import sys
import time
from pathlib import Path

from common.status import Code
from tests.kit.answers import Identity, answer_of
from tests.kit.vendor import Refusal, Vendor, VendorCall

ITS_WORDS = "the driver's own words"  # The text of its errors. Any other text was not sent by the driver.

ITS_CODES = (Code.ALREADY_EXISTS, Code.INTERNAL, Code.RESOURCE_EXHAUSTED, Code.OUT_OF_RANGE)

_LONGEST_S = 0.01


def _create(call: VendorCall) -> bytes:
    time.sleep(random.uniform(0, _LONGEST_S))
    if random.random() < 0.3:
        raise Refusal(random.choice(ITS_CODES), ITS_WORDS)
    return bytes(answer_of(Identity(""), call.method, call.data).SerializeToString())


def main() -> None:
    vendor = Vendor(Path(sys.argv[1]))
    vendor.on("CreateVolume", _create)
    vendor.start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
