"""The doctor: looks at what runs here of CSI Bridge, and says of each thing whether it is well, and what to do if not.

`command.py` finds out what there is; `hub.py`, `proxy.py`, `cluster.py` and `agent.py` have the checks of one process
each; the others look at one kind of thing. Nothing that is looked at is changed.
"""
