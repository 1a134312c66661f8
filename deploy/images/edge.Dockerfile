# The edge image: the agent. It runs as root, because root owns the drivers' sockets. To build it for all platforms, in
# the project's folder:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/images/edge.Dockerfile -t REGISTRY/edge:0.1.0 .
#   ... --target dirdriver -t REGISTRY/dirdriver:0.1.0 .     the example driver
#   ... --target edge-direct -t REGISTRY/edge-direct:0.1.0 . the agent of ../edge/direct, with programs for file systems
#
# No line names a platform: docker and pip choose the base image and the wheels of each.
# The official images are built with profile-guided optimisation, without which a call takes a tenth longer.
ARG PYTHON=docker.io/library/python:3.13-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY cli cli
COPY cloud cloud
COPY common common
COPY edge edge
COPY examples examples
RUN python -m venv --without-pip /opt/csi-bridge
RUN pip --python /opt/csi-bridge/bin/python install --no-cache-dir --constraint constraints.txt ".[edge]"

FROM build AS build-dirdriver
RUN pip --python /opt/csi-bridge/bin/python install --no-cache-dir --constraint constraints.txt ".[demo]"

FROM ${PYTHON} AS dirdriver
COPY --from=build-dirdriver /opt/csi-bridge /opt/csi-bridge
ENV PATH=/opt/csi-bridge/bin:$PATH
ENTRYPOINT ["dirdriver"]

FROM ${PYTHON} AS edge-direct
RUN apt-get update && apt-get install --yes --no-install-recommends e2fsprogs xfsprogs && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/csi-bridge /opt/csi-bridge
ENV PATH=/opt/csi-bridge/bin:$PATH
ENV PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["csi-bridge"]

FROM ${PYTHON} AS edge
COPY --from=build /opt/csi-bridge /opt/csi-bridge
ENV PATH=/opt/csi-bridge/bin:$PATH
# Installed files are compiled already, and the root file system may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["csi-bridge"]
