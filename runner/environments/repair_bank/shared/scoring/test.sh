#!/bin/sh
# Grades what was delivered. A grader that dies says so: the episode is then ungraded, not a real zero.
tests=$(cd "$(dirname "$0")" && pwd)
logs=${ASSAY_LOGS:-/logs}
mkdir -p "$logs/verifier"
rm -f "$logs/verifier/reward.json"
python3 "$tests/grade.py" >"$logs/verifier/test-stdout.txt" 2>&1
cat "$logs/verifier/test-stdout.txt"
if [ ! -f "$logs/verifier/reward.json" ]; then
    echo '{"reward": 0, "equivalence_pass": 0, "speedup": 0, "grader_error": 1}' >"$logs/verifier/reward.json"
fi
