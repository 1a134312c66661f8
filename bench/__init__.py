"""The bench: what is measured (`figures.py`), the run that prints it (`run.py`), and what makes the load."""
