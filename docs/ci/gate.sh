#!/bin/sh
# Export MODEL, score it beside its PyTorch original over DATA, and leave what CI shows in gate/. Ends with the verdict's exit code.
set -eu
model=$1 data=$2 out=${3:-gate}
mkdir -p "$out"

python exporter/export.py --model "$model" --out "$out/artifacts" --overwrite

verdict=0
python bench.py --engine both --bundle "$out/artifacts/$model" --data "$data" --out "$out/runs" --json > "$out/verdict.json" || verdict=$?
[ "$verdict" -le 1 ] || exit "$verdict"

runs=$(python -c 'import json, sys; found = json.load(open(sys.argv[1])); print(found["reference"], found["candidate"])' "$out/verdict.json")
for form in junit:junit.xml md:comment.md html:report.html; do
    # shellcheck disable=SC2086  # two folders
    python bench.py report $runs --format "${form%%:*}" --out "$out/${form#*:}" --overwrite || [ $? -eq 1 ]
done
cat "$out/comment.md"
exit "$verdict"
