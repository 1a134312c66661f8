"""The bench: the figures (`figures.py` and others), the run that prints them (`run.py`), and the load generators."""
