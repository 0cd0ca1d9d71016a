"""Your ONNX file: check it, defend it, and ask what no patch can hide.

python own_onnx.py model.onnx street.jpg
"""

import sys

from objectseeker import Defense, Patch, load_image
from objectseeker.detectors.check import check

model, file = sys.argv[1:]
defense = Defense.for_detector(
    f"onnx:{model}"
)  # settings for any detector, until `objectseeker tune` finds better ones
seeker = defense.build()
image = load_image(file)

print(check(seeker.detector, image, deployed_masks=defense.masks))

defended = seeker.defend(image)
found = defended.detections
threats = [Patch(area=0.01, location=where) for where in ("far", "close", "over")]  # 1 % of the image
certificates = seeker.certify(defended.observation, found, threats)
for number, label in enumerate(found.label):
    proven = [patch.location for patch, row in zip(threats, certificates.certified, strict=True) if row[number]]
    verdict = f"certified {', '.join(proven)}" if proven else "not certified"
    print(f"{seeker.detector.names[label]} {found.score[number]:.2f}: {verdict};", end=" ")
    print(f"the largest square that cannot hide it anywhere has {certificates.largest_square[number]} pixels per side")

defense.save("defense.json")  # for every command: objectseeker detect street.jpg --defense defense.json
