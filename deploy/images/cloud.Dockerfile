# The cloud image: hub, proxy driver, and an operator's commands. To build it for all platforms, in the project's folder:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/images/cloud.Dockerfile -t REGISTRY/cloud:0.1.0 .
#   ... --target csidriver -t REGISTRY/csidriver:0.1.0 .     the same image, in place of KubeEdge's csidriver
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
RUN pip --python /opt/csi-bridge/bin/python install --no-cache-dir --constraint constraints.txt ".[cloud]"

FROM ${PYTHON} AS base
COPY --from=build /opt/csi-bridge /opt/csi-bridge
ENV PATH=/opt/csi-bridge/bin:$PATH
# Installed files are compiled already, and the root file system may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1

# KubeEdge's StatefulSets name no command, and their containers own files as root.
FROM base AS csidriver
COPY --chmod=755 deploy/images/csidriver /usr/local/bin/csidriver
ENTRYPOINT ["csidriver"]

FROM base AS cloud
USER 65532:65532
ENTRYPOINT ["csi-bridge"]
