"""What this node keeps on its disk of what it was told and has to tell. The door is `edge.metastore`."""
