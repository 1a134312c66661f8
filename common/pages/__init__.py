"""The state that a hub and an agent show: JSON over HTTP on a UNIX socket, for the command line and for other tools.

Read in this order:

* `hub`, `agent`: the pages of each, as dataclasses. docs/pages.schema.json is made from them.
* `json_form`: dataclasses as JSON and back.
* `server`: answers requests for pages.
* `client`: asks for a page.
"""
