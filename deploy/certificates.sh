#!/bin/sh
# Makes the bridge's own CA, and certificates of it for a hub, a proxy driver and edge nodes.
#
#   deploy/certificates.sh DIRECTORY hub NAME...        the names and addresses that others dial
#   deploy/certificates.sh DIRECTORY driver DRIVER      the vendor driver's name, e.g. dirdriver.csi
#   deploy/certificates.sh DIRECTORY edge NODE          the node's name in Kubernetes
#
# The CA is made at the first call: DIRECTORY/ca.crt and ca.key. Keep ca.key where no process of the bridge is: whoever has
# it can be any node. Each call leaves ca.crt, tls.crt and tls.key in a folder of its own, e.g. DIRECTORY/edge-n1, and
# replaces what was there. They are good for DAYS (365).
set -eu
umask 077

usage() {
    sed -n 's/^#   //p' "$0" >&2
    exit 2
}
[ $# -ge 3 ] || usage
directory=$1 role=$2 name=$3
shift 2

case $role in
hub)
    subject="/O=csi-bridge:hubs/CN=csi-bridge:hub" purpose=serverAuth folder=$directory/hub alternatives=
    for each; do
        case $each in
        *:* | *[0-9].[0-9]*.[0-9]*.[0-9]*) kind=IP ;;
        *) kind=DNS ;;
        esac
        alternatives=${alternatives:+$alternatives,}$kind:$each
    done
    ;;
driver) subject="/O=csi-bridge:drivers/CN=csi-bridge:driver:$name" purpose=clientAuth folder=$directory/driver-$name ;;
edge) subject="/O=system:nodes/CN=system:node:$name" purpose=clientAuth folder=$directory/edge-$name ;;
*) usage ;;
esac
[ "$role" = hub ] || [ $# -eq 1 ] || usage

mkdir -p "$directory" "$folder"

# OpenSSL writes progress to the same place as errors: it is shown if it fails.
quietly() {
    "$@" 2>"$folder/log" || {
        cat "$folder/log" >&2
        exit 1
    }
}

if [ ! -e "$directory/ca.key" ]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=csi-bridge CA" \
        -addext basicConstraints=critical,CA:true,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout "$directory/ca.key" -out "$directory/ca.crt"
fi
quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$subject" \
    -keyout "$folder/tls.key" -out "$folder/tls.csr"
{
    printf '%s\n' basicConstraints=critical,CA:false keyUsage=critical,digitalSignature "extendedKeyUsage=$purpose" \
        subjectKeyIdentifier=hash authorityKeyIdentifier=keyid
    [ -z "${alternatives-}" ] || printf '%s\n' "subjectAltName=$alternatives"
} >"$folder/tls.ext"
quietly openssl x509 -req -in "$folder/tls.csr" -CA "$directory/ca.crt" -CAkey "$directory/ca.key" -days "${DAYS:-365}" \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$folder/tls.ext" -out "$folder/tls.crt"
rm "$folder/tls.csr" "$folder/tls.ext" "$folder/log"
cp "$directory/ca.crt" "$folder/ca.crt"
echo "$folder"
