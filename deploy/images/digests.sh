#!/bin/sh
# Reads manifests, such as `helm template` writes them, and writes the chart's values with the digest of each of their images:
#
#   helm template csi-bridge deploy/chart --values my-values.yaml | deploy/images/digests.sh >my-digests.yaml
#
# DIGEST_OF is the command that prints the digest of an image: of all platforms together, where it has several.
set -eu
: "${DIGEST_OF:=docker buildx imagetools inspect --format {{.Manifest.Digest}}}"

found=''
for image in $(sed -n 's/^ *\(- \)\{0,1\}image: //p' | sed 's/@.*//' | sort -u); do
    digest=$($DIGEST_OF "$image")
    if ! printf '%s' "$digest" | grep -qE '^sha256:[0-9a-f]{64}$'; then
        echo "$image has no digest: '$DIGEST_OF' said: $digest" >&2
        exit 1
    fi
    name=${image##*/}
    found="$found
    ${name%:*}: $digest"
done
# At once: a failure before leaves the file empty.
echo "images:
  digests:$found
admissionPolicies:
  digests: true # lets the two namespaces run only images that are named by their digests"
