"""The demo: a volume's whole life on this machine, told on the terminal.

`story.py` is the plot, `stage.py` the processes and the cable between them, `leash.py` what ties them to the demo,
`teller.py` the voice.
"""
