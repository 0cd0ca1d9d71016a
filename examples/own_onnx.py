"""Your ONNX file: check it, defend it, and ask what no patch can hide.

python own_onnx.py model.onnx street.jpg
"""

import sys

from objectseeker import Defence, Halves, Patch, Rule
from objectseeker.detectors.check import check_detector
from objectseeker.files.images import load_image

model, photograph = sys.argv[1:]
defence = Defence(detector=f"onnx:{model}", rule=Rule(base_score=0.3, mask_score=0.5), masks=Halves(4))
seeker = defence.seeker()
image = load_image(photograph)

for finding in check_detector(seeker.detector, image):
    print({True: "ok", False: "FAILED", None: "note"}[finding.passed], finding.name, finding.detail, sep=" | ")

defended = seeker.defend(image)
found = defended.detections
certificates = seeker.certify(defended.observation, found, Patch(area=0.01, where="anywhere"))
for number, label in enumerate(found.label):
    name, square = seeker.detector.names[label], certificates.largest_square[number]
    proven = "certified" if certificates.certified[0, number] else "not certified"
    print(f"{name} {found.score[number]:.2f}: {proven} for a patch of 1 % of the image, wherever it lies;", end=" ")
    print(f"the largest square that cannot hide it has {square} pixels a side")

defence.save("defence.json")  # for every command: objectseeker detect street.jpg --defence defence.json
