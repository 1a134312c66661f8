#!/bin/sh
# Writes a kustomize component that names the images of deploy/ by their digests, your registry's and the sidecars':
#
#   deploy/images/digests.sh registry.your.company/csi-bridge >my-cluster/images/kustomization.yaml
#
# DIGEST_OF is the command that prints the digest of an image: of all platforms together, where it has several.
set -eu
: "${1:?the registry of your images, such as registry.your.company/csi-bridge}"
: "${DIGEST_OF:=docker buildx imagetools inspect --format {{.Manifest.Digest}}}"
cd "$(dirname "$0")/.."

images=$(grep -rhoE '^ *image: [^ ]+:[^ ]+' cloud edge examples/driver | sed 's/.*image: //' | sort -u)
found=''
for image in $images; do
    name=${image%:*}
    case $name in
        registry.example/csi-bridge/*) new=$1/${name##*/} ;;
        *) new=$name ;;
    esac
    digest=$($DIGEST_OF "$new:${image##*:}")
    if ! printf '%s' "$digest" | grep -qE '^sha256:[0-9a-f]{64}$'; then
        echo "$new:${image##*:} has no digest: '$DIGEST_OF' said: $digest" >&2
        exit 1
    fi
    found="$found
  - {name: $name, newName: $new, digest: $digest}"
done
# At once: a failure before leaves the file empty, and kustomize refuses it.
echo "apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:$found"
