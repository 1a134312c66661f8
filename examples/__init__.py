"""Stands for programs of others. `dirdriver` is a CSI driver, as a vendor would ship it."""
