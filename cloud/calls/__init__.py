"""Calls of proxy drivers and operators on their way through the hub, and the streams of agents.

Read in this order:

* `call`: one call, which calls may pass, and the record of their outcome. Start here.
* `class_parameters`: takes the bridge's own parameters of a StorageClass out of a call.
* `node_calls`, `refusals`: counts of each node's calls, for people; the refused peers.
* `report_streams`, `stream_turns`: the agents' reports; an agent's streams over two links, one after another.
"""
