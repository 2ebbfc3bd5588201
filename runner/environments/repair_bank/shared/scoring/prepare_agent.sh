#!/bin/sh
# Lays out $ASSAY_APP (/app): the broken tree, built, and what the agent may read and run. The pinned source stays behind.
set -e
cd "$(dirname "$0")"
app=${ASSAY_APP:-/app}
tree=$app/@CODE@
mkdir -p "$tree"
tar -xf source/source.tar -C "$tree"
python3 defect/apply_defect.py defect/defect.json "$tree"
cp -R cases checks tools "$app/"
make --silent --jobs=2 -C "$tree" @TARGET@
