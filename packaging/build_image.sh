#!/usr/bin/env bash
# Builds the container image on a base that is named by its digest.
#
#     BASE=docker.io/library/debian@sha256:... packaging/build_image.sh [OPTIONS OF THE BUILDER]
#
# A tag is refused: what it names can change between two builds, and between the build that was tested and
# the one that is shipped. BUILDER is podman or docker, IMAGE the name of the image.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${BASE:-}
if [[ ! $base =~ ^[a-z0-9./:_-]+@sha256:[0-9a-f]{64}$ ]]; then
    echo "error: BASE is '$base'; name the base by its digest, like" \
         "docker.io/library/debian@sha256:(64 digits). To find it:" \
         "skopeo inspect --format '{{.Digest}}' docker://docker.io/library/debian:bookworm-slim" >&2
    exit 2
fi
builder=${BUILDER:-$(command -v podman || command -v docker || true)}
if [ -z "$builder" ]; then
    echo "error: neither podman nor docker is installed" >&2
    exit 1
fi
exec "$builder" build --build-arg "BASE=$base" -t "${IMAGE:-rhizome}" -f packaging/Containerfile "$@" .
