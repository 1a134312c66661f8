"""The chaos test: many volumes' lives through the whole bridge, while any part of it fails at any time.

* `site`: the processes and links: hubs, nodes with their drivers, proxy drivers, an API server
* `faults`: what happens to them, planned from a seed
* `callers`: what the stock sidecars want done, and their retries
* `judge`: compares the callers' history with the drivers' own journals
* `trial`: one run

docs/chaos.md says what it proves, and how to run it.
"""
