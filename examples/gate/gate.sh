#!/bin/sh
# One step of your CI: check the detector, observe your data with the defense that is to be released, apply the policy.
#   gate/gate.sh coco:truth.json:images defense.json policy.toml gate
# Exit code 0: release. 1: a requirement fails or is undecided. gate/ has junit.xml, gate.md and gate.html to publish.
set -e
mkdir -p "$4"
# A failed check is a file, too: the policy says whether it stops the release (detector_check).
objectseeker check --defense "$2" --json > "$4/check.json" || { status=$?; [ $status = 1 ] || exit $status; }
objectseeker observe "$1" --defense "$2" --out "$4/run"
objectseeker gate "$4/run" --policy "$3" --defense "$2" --detector-check "$4/check.json" --audit-bundle "$4/audit.zip" --out "$4"
