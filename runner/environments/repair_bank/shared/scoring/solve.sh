#!/bin/sh
# The oracle: undo the defect, build, deliver.
set -e
app=${ASSAY_APP:-/app}
solution=${ASSAY_SOLUTION:-/solution}
python3 "$solution/apply_defect.py" "$solution/defect_fix.json" "$("$app/tools/tree")"
"$app/tools/build"
"$app/tools/deliver"
