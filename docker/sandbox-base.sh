#!/usr/bin/env bash
# Makes the base image of every task container (compilers, make, tmux, a small Python) from Debian's packages, without an image registry.
# The tag is the digest of the recipe, so an image that exists is the right one and is used again. Needs root and a running container
# engine; debootstrap unless BASE names an image with apt (BASE=debian:bookworm-slim where a registry is reached). What debootstrap made
# is kept under ~/.cache/assay, so that another engine of the machine has it in seconds.
#   docker/sandbox-base.sh          make it unless it is there, print its tag
#   docker/sandbox-base.sh --tag    print the tag only
set -euo pipefail
suite=bookworm
packages=gcc,gfortran,libc6-dev,make,patch,tmux,procps,python3-minimal
# python3-minimal lacks json and tarfile, which every grader needs: libpython3-stdlib has them.
packages+=,libpython3-stdlib
tag=assay-sandbox-base:$(printf '%s\n' "$suite" "$packages" v1 | sha256sum | cut -c1-12)
if [ "${1:-}" = --tag ]; then echo "$tag"; exit; fi
if docker image inspect "$tag" >/dev/null 2>&1; then echo "$tag"; exit; fi

if [ -n "${BASE:-}" ]; then
    docker build --quiet --tag "$tag" - >&2 <<DOCKERFILE
FROM $BASE
ENV LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
RUN apt-get update && apt-get install -y --no-install-recommends ${packages//,/ } && rm -rf /var/lib/apt/lists/*
DOCKERFILE
else
    archive=${XDG_CACHE_HOME:-$HOME/.cache}/assay/${tag//:/-}.tar.gz
    if [ ! -f "$archive" ]; then
        mkdir -p "$(dirname "$archive")"
        root=$(mktemp -d) partial=$(mktemp "$archive.XXXXXX")
        trap 'rm -rf "$root" "$partial"' EXIT
        debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${MIRROR:+"$MIRROR"} >&2
        # Nothing is installed in a task container, so neither package lists nor manuals are of use there.
        rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info}/* "$root"/var/log/*.log
        tar -C "$root" -c . | gzip -1 >"$partial"
        mv "$partial" "$archive"
    fi
    docker import --change 'ENV LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1' \
        --change 'LABEL assay.base=sandbox' "$archive" "$tag" >&2
fi
echo "$tag"
