"""Examples that stand for other people's programs. `dirdriver` is a CSI driver, as a vendor would ship it."""
