"""Writes the nodes' facts to the Kubernetes API.

Read in this order:

* `ownership`: marks on the objects that the hub made.
* `writer`, `node_writer`, `csinode_writer`, `claim_writer`, `event_writer`, `pod_writer`: one writer for each kind of
  object.
* `heartbeats`: Leases and conditions that keep a Node without a kubelet Ready.
* `handover`: removes the hub's marks when a kubelet takes a node over; writes the CSINode of a node with EdgeCore;
  deletes the hub's objects of a node that is gone for good.
* `written_facts`: puts the writers together.
* `election_events`: tells of elections of serving nodes.
* `node_problems`: tells what agents say must be solved on their nodes.
"""
