"""Progress: lines on standard error that tell what the bench does now."""

import sys
import time


def say(text: str) -> None:
    """Print a line, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
