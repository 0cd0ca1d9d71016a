#!/bin/sh
# One step of your CI: observe your data with the defense that is to be released, hold it against the policy.
#   gate/gate.sh coco:truth.json:photos defense.json policy.toml gate
# Exit code 0: release. 1: a requirement fails or is undecided. gate/ has junit.xml, gate.md and gate.html to publish.
set -e
objectseeker observe "$1" --defense "$2" --out "$4/run"
objectseeker gate "$4/run" --policy "$3" --defense "$2" --out "$4"
