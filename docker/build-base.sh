#!/usr/bin/env bash
# Makes the base image and the stand-ins for postgres and redis on a machine that reaches Debian's packages but no image registry.
# Needs root, debootstrap and a running container engine. The base inherits this machine's certificate authorities, apt sources and,
# where PIP_FIND_LINKS names a folder, its wheels, because a build inside it has to reach the same package indexes.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=${SUITE:-bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$suite" "$root" ${MIRROR:+"$MIRROR"}
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
changes=(--change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1')
if [ -d "${PIP_FIND_LINKS:-}" ]; then
    mkdir "$root/wheels"
    find "$PIP_FIND_LINKS" -maxdepth 1 -name '*.whl' -exec cp -t "$root/wheels" {} +
    changes+=(--change 'ENV PIP_FIND_LINKS=/wheels')
fi
tar -C "$root" -c . | docker import "${changes[@]}" - assay-base

docker build --build-arg BASE=assay-base -t assay-postgres -f docker/postgres.Dockerfile .
docker build --build-arg BASE=assay-base -t assay-redis -f docker/redis.Dockerfile .
