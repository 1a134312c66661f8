#!/bin/sh
# Makes the bridge's own CA, and certificates from it for the hub, a proxy driver or an edge node.
#
#   deploy/certificates.sh DIRECTORY hub NAME...        the names and addresses at which others dial the hub, and
#                                                       csi-bridge:driver:DRIVER for each driver that it serves beside others
#   deploy/certificates.sh DIRECTORY driver DRIVER      the vendor driver's name, e.g. dirdriver.csi
#   deploy/certificates.sh DIRECTORY edge NODE [DRIVER...]   the node's name in Kubernetes, and the drivers that it may run
#
# The first call makes the CA: DIRECTORY/ca.crt and ca.key. Keep ca.key off the machines of the bridge: it can make a
# certificate for any node. Role and name stand in the certificate's URI, csi-bridge:node:NODE or csi-bridge:driver:DRIVER,
# and in its common name if they fit there. A node's certificate has csi-bridge:may-run:DRIVER for each of its drivers. Each call writes ca.crt, tls.crt and tls.key to a folder of their own, e.g. DIRECTORY/edge-n1,
# and replaces older ones. A call that fails changes nothing. The certificates end after DAYS days (365).
set -eu
umask 077
export LC_ALL=C # [a-z] means these letters alone

usage() {
    sed -n 's/^#   //p' "$0" >&2
    exit 2
}
[ $# -ge 3 ] || usage
directory=$1 role=$2 name=$3
shift 2

alternatives=
case $role in
hub)
    organization=csi-bridge:hubs common=csi-bridge:hub purpose=serverAuth folder=$directory/hub
    for each; do
        case $each in
        csi-bridge:driver:*[!A-Za-z0-9.-]* | csi-bridge:driver:)
            echo "$0: $each is for no name of a CSI driver" >&2
            exit 2
            ;;
        csi-bridge:driver:*) kind=URI purpose=serverAuth,clientAuth ;;
        *:*) kind=IP ;;
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
        esac
        alternatives=${alternatives:+$alternatives,}$kind:$each
    done
    ;;
driver)
    organization=csi-bridge:drivers common=csi-bridge:driver:$name purpose=clientAuth folder=$directory/driver-$name
    alternatives=URI:csi-bridge:driver:$name allowed=A-Za-z0-9.- longest=63
    ;;
edge)
    organization=system:nodes common=system:node:$name purpose=clientAuth folder=$directory/edge-$name
    alternatives=URI:csi-bridge:node:$name allowed=a-z0-9.- longest=250
    shift
    for each; do
        case $each in
        '' | *[!A-Za-z0-9.-]*)
            echo "$0: $each is no name of a CSI driver" >&2
            exit 2
            ;;
        esac
        alternatives=$alternatives,URI:csi-bridge:may-run:$each
    done
    set -- "$name"
    ;;
*) usage ;;
esac
if [ "$role" != hub ]; then
    [ $# -eq 1 ] || usage
    case $name in
    '' | *[!$allowed]*)
        echo "$0: $name is no name of a Kubernetes node or CSI driver; it may have the characters $allowed" >&2
        exit 2
        ;;
    esac
    # A CSI driver's name has 63 characters at most; the folder of a longer node name would have more than the system takes.
    if [ ${#name} -gt $longest ]; then
        echo "$0: $name has ${#name} characters; the limit is $longest" >&2
        exit 2
    fi
    # A common name (CN) has 64 characters at most (RFC 5280). A longer name stands in the URI alone.
    [ ${#common} -le 64 ] || common="csi-bridge $role"
fi
# openssl itself takes 0 and less: such a certificate has ended when it is made.
days=${DAYS:-365}
case $days in
0* | *[!0-9]*)
    echo "$0: DAYS=$days must be a whole number of days, 1 or more" >&2
    exit 2
    ;;
esac

mkdir -p "$directory"
work=$(mktemp -d "$directory/.new-XXXXXX")
trap 'rm -r "$work"' EXIT

# OpenSSL writes both progress and errors to stderr. Show them only if it fails.
quietly() {
    "$@" 2>"$work/log" || {
        cat "$work/log" >&2
        exit 1
    }
}

if [ ! -e "$directory/ca.key" ]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=csi-bridge CA" \
        -addext basicConstraints=critical,CA:true,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout "$work/ca.key" -out "$work/ca.crt"
    mv "$work/ca.crt" "$work/ca.key" "$directory"
fi
quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/O=$organization/CN=$common" \
    -keyout "$work/tls.key" -out "$work/tls.csr"
{
    printf '%s\n' basicConstraints=critical,CA:false keyUsage=critical,digitalSignature "extendedKeyUsage=$purpose" \
        subjectKeyIdentifier=hash authorityKeyIdentifier=keyid
    [ -z "$alternatives" ] || printf '%s\n' "subjectAltName=$alternatives"
} >"$work/tls.ext"
quietly openssl x509 -req -in "$work/tls.csr" -CA "$directory/ca.crt" -CAkey "$directory/ca.key" -days "$days" \
    -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/tls.ext" -out "$work/tls.crt"
mkdir -p "$folder"
cp "$directory/ca.crt" "$folder"
mv "$work/tls.key" "$work/tls.crt" "$folder"
echo "$folder"
