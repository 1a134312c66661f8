"""Fences volumes: shuts their file systems down when the agent's lease ends.

Read in this order:

* `shutdown`: the kernel's call, and the proof that it did what it says.
* `trial`: whether this kernel keeps its word, on a scratch image.
* `fenced_volumes`: which volumes can be fenced.
* `watchdog`: the device that resets the machine if the agent cannot fence.
* `plan`: the volumes to fence, on the disk.
* `fencing`: the agent's part. Start here.
"""
