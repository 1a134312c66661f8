"""`python -m cli`: the same as `csi-bridge`, for a tree or an environment without the console script."""

from cli.main import main

main()
