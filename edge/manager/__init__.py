"""How wanted and actual are brought together. The door is `edge.volume_manager`.

Read `resolution` and `wanted` (what pods want), `states` (what was done), then `task`: one volume, one step at a time.
"""
