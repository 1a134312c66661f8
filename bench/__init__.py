"""The bench. Read the run that prints the tables first (`run.py`), then the figures of each group (`call_figures.py`,
...), what they stand on (`chain.py`, `spread.py`, `figure.py`), and the counter of steps (`counts.py`).
"""
