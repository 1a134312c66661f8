"""One target under libFuzzer: `python -m tests.fuzz.one TARGET DIRECTORY… -FLAG…`. `tests.fuzz.run` starts it."""

import logging
import sys

import atheris

with atheris.instrument_imports(include=["cloud", "common", "edge"]):
    from tests.fuzz.targets import TARGETS

logging.disable(logging.CRITICAL)


def main() -> None:
    """Run until libFuzzer ends the process: after its flags' time or number of cases, or at a crash."""
    name, *flags = sys.argv[1:]
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *flags], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
