"""What lies below the kubelet's root directory: paths, files, mounts, devices, owners. Nothing here calls a driver.

Read `layout` first: it has every path.
"""
