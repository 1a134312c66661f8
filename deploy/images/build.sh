#!/bin/sh
# Builds all images with buildah, without a registry, and writes them into one archive (an OCI layout), which
# ctr, k3s and kind import, and from which skopeo copies to a registry:
#
#   deploy/images/build.sh ARCHIVE
#   REGISTRY=registry.your.company/csi-bridge deploy/images/build.sh ARCHIVE --arch arm64
#
# buildah bud gets what follows ARCHIVE. Another architecture than this machine's takes qemu-user-static (Debian's package).
# REGISTRY is where the images' names begin; IMAGES are the targets. SOURCE_DATE_EPOCH is the time of all files: on the same
# base image, two builds give the same digests, as long as Debian has the same packages for edge-direct.
set -eu
: "${1:?the archive to write}"
REGISTRY=${REGISTRY:-registry.example/csi-bridge}
IMAGES=${IMAGES:-cloud csidriver edge edge-direct dirdriver}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

mkdir -p "$(dirname "$1")"
archive=$(realpath "$1")
shift
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^VERSION = "\([^"]*\)".*/\1/p' common/observe/version.py)
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
for target in $IMAGES; do
    name=$REGISTRY/$target:$version
    # With layers, a target begins with the stages that another has built.
    buildah bud --layers --identity-label=false --timestamp "$SOURCE_DATE_EPOCH" --format oci --target "$target" "$@" \
        --file deploy/images/Dockerfile --tag "$name" .
    buildah push "$name" "oci:$layout:$name"
done
tar --create --file "$archive" --directory "$layout" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner .
