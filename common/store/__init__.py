"""Files and databases of a state directory.

Read in this order:

* `files`, `state_file`: a file replaced as a whole; a JSON file with the version of its form, in a closed directory.
* `database`, `database_writer`: an SQLite file with the version of its schema; the one thread that writes to it.
* `fault_points`: places at which a test kills the agent or the hub.
"""
