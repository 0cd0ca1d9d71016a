"""A FiftyOne plugin: the operator `certify` and the evaluation metric `certified_recall`.

`certify` runs a defended detector on every sample and stores its boxes with their certificates. It also certifies the
ground truth: each object gets the attributes far, close, over, anywhere and largest_square, by which the app filters.
`certified_recall` is the share of ground truth objects that `certify` certified.
"""

import numpy as np

import fiftyone as fo
import fiftyone.operators as foo
import fiftyone.operators.types as types
from objectseeker import Defense, load_image
from objectseeker.core.class_matching import match_classes
from objectseeker.core.label_map import LabelMap
from objectseeker.core.threats import PATCH_LOCATIONS, ThreatModel
from objectseeker.inference.results import to_image_result
from objectseeker.interop import from_fiftyone, to_fiftyone


class Certify(foo.Operator):
    @property
    def config(self):
        return foo.OperatorConfig(
            name="certify",
            label="Certify detections against adversarial patches",
            dynamic=True,
            allow_immediate_execution=True,
            allow_delegated_execution=True,
        )

    def resolve_input(self, ctx):
        inputs = types.Object()
        inputs.str("defense", default="builtin-fast", label="Defense", description="A defense file, or a name")
        inputs.str("label_field", default="defended", label="Field for the boxes that are output")
        inputs.str("ground_truth", label="Field of ground truth to certify", required=False)
        inputs.float("patch_area", default=0.01, label="Patch area", description="Share of the image")
        return types.Property(inputs, view=types.View(label="Certify"))

    def execute(self, ctx):
        given = {name: ctx.params.get(name) for name in ("defense", "label_field", "ground_truth", "patch_area")}
        field, truth_field = given["label_field"] or "defended", given["ground_truth"]
        seeker = Defense.load(given["defense"] or "builtin-fast").build()
        threat = ThreatModel(area=given["patch_area"] or 0.01)
        samples, names = ctx.target_view(), seeker.detector.names
        label_map = None
        if truth_field:
            classes = tuple(samples.distinct(f"{truth_field}.detections.label"))
            label_map = LabelMap(names, classes, match_classes(classes, names).dataset_labels)
        boxes = certified = 0
        for number, sample in enumerate(samples.iter_samples(autosave=True), 1):
            image = load_image(sample.filepath)
            height, width = image.shape[:2]
            defended = seeker.defend(image)
            result = to_image_result(seeker, defended, threat)
            found = [fo.Detection(**fields) for fields in to_fiftyone(result, width, height, names)]
            sample[field] = fo.Detections(detections=found)
            boxes += len(found)
            if label_map is not None and sample[truth_field] is not None:
                objects = from_fiftyone(sample[truth_field], width, height, label_map.dataset_names)
                rows = certify_objects(seeker, defended.observation, objects, label_map, threat)
                for detection, row in zip(sample[truth_field].detections, rows, strict=True):
                    for attribute, value in row.items():
                        detection[attribute] = value
                    certified += row["anywhere"]
            ctx.set_progress(progress=number / len(samples))
        samples._dataset.add_dynamic_sample_fields()
        return {"samples": len(samples), "boxes": boxes, "certified_objects": certified}

    def resolve_output(self, ctx):
        outputs = types.Object()
        for name in ("samples", "boxes", "certified_objects"):
            outputs.int(name, label=name.replace("_", " "))
        return types.Property(outputs)


def certify_objects(seeker, observation, objects, label_map, threat):
    """Return the certificates of ground truth objects, as whichever classes of the detector map to theirs."""
    mapped, which = label_map.map_to_detector(objects, classwise=seeker.rule.classwise)
    certificates = seeker.certify(observation, mapped, threat.patches())
    verdicts = label_map.any_label(certificates.certified, which, len(objects))
    side = np.zeros(len(objects), int)
    np.maximum.at(side, which, certificates.largest_square)
    return [
        dict(zip(PATCH_LOCATIONS, column, strict=False)) | {"largest_square": square}
        for column, square in zip(verdicts.T.tolist(), side.tolist(), strict=True)
    ]


class CertifiedRecall(foo.EvaluationMetric):
    @property
    def config(self):
        return foo.EvaluationMetricConfig(
            name="certified_recall",
            label="Certified recall",
            description="Share of ground truth objects that no patch can hide",
            eval_types=["detection"],
            lower_is_better=False,
        )

    def compute(self, samples, results, location="anywhere"):
        field = f"{results.config.gt_field}.detections"
        verdicts = samples.values(f"{field}.{location}", unwind=True)
        if not verdicts or None in verdicts:
            raise ValueError(f"{field} has no certificates: run the operator certify with this ground truth first")
        return sum(verdicts) / len(verdicts)


def register(plugin):
    plugin.register(Certify)
    plugin.register(CertifiedRecall)
