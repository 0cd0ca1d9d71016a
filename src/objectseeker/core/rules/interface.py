"""The interface of pruning rules, for certification, metrics, attacks, reports and files.

A new rule is a subclass of `PruningRule` in one file, registered with `register_rule`. Nothing else changes: the
certification engine, tuning, evaluation, the gate, reports and attacks use this interface only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from objectseeker.core.bounds import MARGIN, Bound
from objectseeker.core.boxes import Bools, Detections, Floats, Ints, iou
from objectseeker.core.certification import (
    Certificates,
    ObjectProof,
    Prover,
    Proving,
    certify_objects,
    object_proofs,
)
from objectseeker.core.evidence import Stars, build_stars
from objectseeker.core.fabrication import SupportCriteria, certified_scores
from objectseeker.core.joint import JointCertificate, certify_jointly, require_anywhere
from objectseeker.core.observation import Observation
from objectseeker.core.threats import Patch, PatchPositions
from objectseeker.errors import ObjectSeekerError, require_fraction

Overlap = Literal["ioa", "iou"]  # the covered share of the object, or the IoU with it

FEW_PAIRS = 2000  # of boxes and objects: measuring them takes about as long as one more call
THRESHOLDS = ("base_threshold", "mask_threshold", "evidence_threshold")  # what a threshold schedule sets


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningRule(ABC):
    """The rule that prunes and certifies: one object holds every setting that both depend on.

    A rule is a frozen dataclass whose fields are its settings, each with a default value. A subclass implements the
    abstract members; everything else has an implementation that holds for every rule that keeps this contract:

    1. `prune` outputs every base box of at least `base_threshold`, first and in their order.
    2. `usable_boxes`, `discounted_scores` and `evidence` say of a masked box what depends on nothing but that box, its
       score and its mask. The scores do not depend on the thresholds. `evidence` does not decrease with the score, and
       is 0 below `min_mask_score`.
    3. If masked box m is usable, has evidence 1 and `lower_bound(m, g) > T + MARGIN`, with m and object g of one label
       if the rule is `classwise`, then `prune` outputs a box (of that label, if `classwise`) whose overlap with g
       exceeds T, whatever the base boxes and the other masked boxes are.
    4. If `combines_views`, the same holds for several such boxes of partial evidence whose star (`core.evidence`),
       at `cluster_distance`, reaches an evidence of 1.

    Guarantee of every such rule: if `certify` certifies object g against patch p, then for every allowed position of p
    (every `p.count` positions, if it is 2 or more; and whatever is drawn outside g's grown box, if `p.owns_outside`)
    and any pixels drawn there, `prune` outputs a box (of g's label, if `classwise`) whose overlap with g exceeds the
    certification threshold; so it does with any other `base_threshold`.
    It holds in exact arithmetic, for a detector that is a pure function of the pixels a mask keeps; ties are not
    certified. An object with no visible area is never certified. Proof: by 2 the attacker cannot change what the boxes
    of a view that removes the patch prove, and by 3 and 4 they prove it whatever else is in the observation. QED.

    Attributes:
        kind: The rule's name in files.
        overlap: What certificates compare with the certification threshold.
        default_certification_threshold: The certification threshold T unless another one is passed.
        proof_settings: The settings that decide which masked boxes prove what: proofs are found once for all rules that
            have these in common.
        candidate_settings: The settings that decide, thresholds aside, which boxes `prune` outputs.
    """

    kind: ClassVar[str]
    overlap: ClassVar[Overlap] = "ioa"
    default_certification_threshold: ClassVar[float] = 0.0
    proof_settings: ClassVar[tuple[str, ...]]
    candidate_settings: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def base_threshold(self) -> float:
        """The lowest score of a base box that is output."""

    @property
    @abstractmethod
    def mask_threshold(self) -> float:
        """The score at which one masked box is sufficient on its own."""

    @property
    @abstractmethod
    def classwise(self) -> bool:
        """Return whether boxes meet only boxes and objects of their own label; if not, class-agnostic."""

    @property
    @abstractmethod
    def filter_threshold(self) -> float:
        """The overlap above which a base box drops a masked box."""

    @abstractmethod
    def prune(self, observation: Observation) -> Detections:
        """Return the output: base boxes of at least `base_threshold`, then the boxes that masked boxes add."""

    @abstractmethod
    def lower_bound(self, boxes: Floats, objects: Floats, bound: Bound) -> Floats:
        """Return the least overlap with each object that is left of each masked box: (boxes, objects)."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short description of the rule, for reports."""

    @property
    def certified_property(self) -> str:
        """Return in words what is in the output if an object is certified."""
        box = "a box of the object's class" if self.classwise else "a box of some class, not necessarily the object's,"
        return f"{box} {'that covers more than T of it' if self.overlap == 'ioa' else 'whose IoU with it exceeds T'}"

    @property
    def name(self) -> str:
        """Return the name of the rule in tables."""
        return self.kind

    @property
    def evidence_threshold(self) -> float | None:
        """The score at and above which masked boxes add evidence; None if each is sufficient on its own."""
        return None

    @property
    def combines_views(self) -> bool:
        """Return whether masked boxes of several views prove an object together."""
        return self.evidence_threshold is not None

    @property
    def cluster_distance(self) -> float:
        """The distance up to which boxes are clustered."""
        return 0.0

    @property
    def edge_factor(self) -> float:
        """The factor on the score of a masked box that its mask's line cuts."""
        return 1.0

    @property
    def support_criteria(self) -> SupportCriteria:
        """The settings of fabrication certificates, checked."""
        return SupportCriteria(classwise=self.classwise)

    @property
    def min_mask_score(self) -> float:
        """The lowest score at which a masked box is used."""
        return self.mask_threshold if self.evidence_threshold is None else self.evidence_threshold

    def discounted_scores(self, observation: Observation) -> Floats:
        """Return the score that counts of every masked box."""
        return observation.all_masked.score

    def evidence(self, score: Floats) -> Floats:
        """Return the evidence of a masked box by score; at and above 1 it is sufficient on its own."""
        return np.where(score >= self.mask_threshold, 1.0, 0.0)

    def usable_boxes(self, observation: Observation, boxes: Ints) -> Bools:
        """Return which of some masked boxes, given by their positions, can prove an object at all."""
        return np.ones(len(boxes), np.bool_)

    def proving_pairs(
        self, observation: Observation, objects: Detections, certification_threshold: float, bound: Bound
    ) -> Bools:
        """Return which masked boxes that carry evidence prove which objects, dropped or not: (boxes, objects)."""
        evidence = self._usable_evidence(observation)
        return self._proving_pairs(observation, evidence, objects, certification_threshold, bound)

    def _usable_evidence(self, observation: Observation) -> Floats:
        """Return the evidence of every masked box; 0 for one that can prove no object."""
        evidence = self.evidence(self.discounted_scores(observation))
        carrying = np.flatnonzero(evidence > 0)
        usable = np.zeros(len(evidence), np.bool_)
        usable[carrying] = self.usable_boxes(observation, carrying)
        return np.where(usable, evidence, 0.0)

    def _proving_pairs(
        self,
        observation: Observation,
        evidence: Floats,
        objects: Detections,
        certification_threshold: float,
        bound: Bound,
    ) -> Bools:
        """Return which masked boxes of evidence above 0 prove which objects: (boxes, objects)."""
        require_fraction(certification_threshold, "certification_threshold")
        boxes, some = observation.all_masked, np.flatnonzero(evidence > 0)
        proves = np.zeros((len(boxes), len(objects)), dtype=np.bool_)
        groups = [(some, np.arange(len(objects)))]
        labels = np.unique(objects.label)
        if self.classwise and len(some) * len(objects) > FEW_PAIRS * len(labels):  # measure only pairs of one label
            groups = [(some[boxes.label[some] == label], np.flatnonzero(objects.label == label)) for label in labels]
        for box, n in groups:
            enough = self.lower_bound(boxes.xyxy[box], objects.xyxy[n], bound) > certification_threshold + MARGIN
            if self.classwise:
                enough &= boxes.label[box, None] == objects.label[n]
            proves[np.ix_(box, n)] = enough
        return proves

    def prover(self, observation: Observation, certification_threshold: float, bound: Bound) -> Prover:
        """Return what proves objects: every certificate of this rule is made of it."""
        evidence = self._usable_evidence(observation)

        def proving(objects: Detections) -> Proving:
            proves = self._proving_pairs(observation, evidence, objects, certification_threshold, bound)

            def together(n: int) -> Stars:
                members = np.flatnonzero(proves[:, n])
                return build_stars(observation, members, evidence[members], self.cluster_distance)

            return proves & (evidence >= 1)[:, None], together if self.combines_views else None

        return proving

    def object_proofs(
        self,
        observation: Observation,
        objects: Detections,
        certification_threshold: float | None = None,
        bound: Bound = "exact",
    ) -> Iterable[Sequence[ObjectProof]]:
        """Return what proves each object: one proof, or none of an object that has no visible area."""
        proving = self.prover(observation, self.resolve_threshold(certification_threshold), bound)
        return object_proofs(observation, objects, proving, multi_view=self.combines_views)

    def certify(
        self,
        observation: Observation,
        objects: Detections,
        patches: Patch | Sequence[Patch],
        *,
        certification_threshold: float | None = None,
        bound: Bound = "exact",
    ) -> Certificates:
        """Certify every object against every patch threat.

        The guarantee is that of the class. Any masks work for any patch count; against two patches `Pairs` certifies
        most, against any number of them outside the object's grown box `Windows`.
        """
        proving = self.prover(observation, self.resolve_threshold(certification_threshold), bound)
        return certify_objects(observation, objects, patches, proving, multi_view=self.combines_views)

    def certify_jointly(
        self,
        observation: Observation,
        objects: Detections,
        patch: Patch,
        *,
        certification_threshold: float | None = None,
        bound: Bound = "exact",
    ) -> JointCertificate:
        """Return how many objects are guaranteed to remain in one output under any single patch: see `joint`."""
        width, height = observation.width, observation.height
        proofs = list(self.object_proofs(observation, objects, certification_threshold, bound))
        if require_anywhere(patch).with_outside:
            grown = PatchPositions.of(objects.xyxy, width, height).grown()
            proofs = [[proof.inside(box) for proof in known] for known, box in zip(proofs, grown, strict=True)]
        proven = objects[np.array([n for n, alternatives in enumerate(proofs) for _ in alternatives], np.int64)]
        size = patch.size(width, height)
        return certify_jointly(observation.masks, proofs, size, self.may_share_box(proven, certification_threshold))

    def may_share_box(self, objects: Detections, certification_threshold: float | None = None) -> Bools:
        """Return which two certified objects one output box may cover: (objects, objects).

        Guarantee: no box satisfies the certificates of two objects that may not share one. Proof: if the rule is
        classwise, the box has the object's label. And 1 - IoU is a metric (Jaccard's distance), so a box whose IoU with
        g and h exceeds T leaves 1 - IoU(g, h) < 2 (1 - T): if IoU(g, h) <= 2 T - 1 there is none. So of objects apart
        from each other from T = 0.5 on, exactly; else the margin goes to sharing. A box of any size may cover more than
        T of any number of objects. QED.
        """
        shared: Bools = np.ones((len(objects), len(objects)), dtype=np.bool_)
        if self.classwise:
            shared &= objects.label[:, None] == objects.label[None]
        threshold = self.resolve_threshold(certification_threshold)
        if self.overlap == "iou" and threshold >= 0.5:
            box = objects.xyxy
            meet = np.minimum(box[:, None, 2:], box[None, :, 2:]) > np.maximum(box[:, None, :2], box[None, :, :2])
            shared &= meet.all(axis=2) & (iou(box, box) > 2 * threshold - 1 - MARGIN)
        np.fill_diagonal(shared, val=True)
        return shared

    def certify_not_fabricated(
        self, observation: Observation, detections: Detections, patches: Patch | Sequence[Patch]
    ) -> Certificates:
        """Certify which output boxes no allowed patch can have made, attacked or not.

        Guarantee: if box n is certified against patch p, then whatever such a patch (two, if `p.count` is 2) drew into
        the observed image, at any allowed position, the detector reports a box that supports box n, of its label if
        `classwise`, on a view of the image without the patch. The proof is in `core.fabrication`; it holds for every
        rule, whatever `prune` does.
        """
        return certify_objects(observation, detections, patches, self.support_criteria.prover(observation))

    def certified_scores(self, observation: Observation, detections: Detections, patch: Patch) -> Floats:
        """Return the score of each output box that no such patch can have made: see `core.fabrication`.

        Guarantee: a box is certified not fabricated iff this is at least `support_threshold`.
        """
        return certified_scores(observation, detections, patch, self.support_criteria)

    def support_proofs(self, observation: Observation, detections: Detections) -> Iterable[Sequence[ObjectProof]]:
        """Return what supports each output box: one proof, or none of a box that has no visible area."""
        return object_proofs(observation, detections, self.support_criteria.prover(observation))

    def certify_jointly_not_fabricated(
        self, observation: Observation, detections: Detections, patch: Patch
    ) -> JointCertificate:
        """Return which output boxes have support, at the position of one patch at which fewest have.

        Guarantee: whatever one such patch drew into the observed image and wherever, at most
        len(detections) - `count` of these boxes have no box that supports them on a view without the patch.
        """
        size = require_anywhere(patch).size(observation.width, observation.height)
        return certify_jointly(observation.masks, self.support_proofs(observation, detections), size)

    def resolve_threshold(self, certification_threshold: float | None) -> float:
        """Return the certification threshold T: the rule's default unless one is passed."""
        return self.default_certification_threshold if certification_threshold is None else certification_threshold

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the names of all settings."""
        return tuple(item.name for item in fields(cls))

    def settings(self) -> dict[str, Any]:
        """Return every setting by name; `from_settings` makes an equal rule of them."""
        return {name: getattr(self, name) for name in self.setting_names()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        return cls(**settings)

    def with_settings(self, **changes: Any) -> Self:
        """Return the rule with other values of some settings."""
        known = self.setting_names()
        for name in changes:
            if name not in known:
                raise ObjectSeekerError(
                    f"the {self.name} rule has no setting of this name: got {name!r}. Use {', '.join(known)}."
                )
        return replace(self, **changes)

    def with_thresholds(
        self, base_threshold: float, mask_threshold: float, evidence_threshold: float | None = None
    ) -> Self:
        """Return the rule with other thresholds."""
        changes: dict[str, Any] = {"base_threshold": base_threshold, "mask_threshold": mask_threshold}
        if evidence_threshold is not None or "evidence_threshold" in self.setting_names():
            changes["evidence_threshold"] = evidence_threshold
        return self.with_settings(**changes)

    def hyperparameters(self) -> dict[str, Any]:
        """Return every setting that no threshold schedule sets."""
        return {name: value for name, value in self.settings().items() if name not in THRESHOLDS}

    @property
    def proof_key(self) -> dict[str, Any]:
        """Return the settings that rules must have in common to share proofs."""
        settings = self.settings()
        return {name: settings[name] for name in self.proof_settings}

    @property
    def candidate_key(self) -> dict[str, Any]:
        """Return the settings that rules must have in common to share the candidates of pruning."""
        settings = self.settings()
        return {name: settings[name] for name in self.candidate_settings}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `rule_from_dict` makes an equal rule of."""
        return {"kind": self.kind, **self.settings()}


R = TypeVar("R", bound=type[PruningRule])

_KINDS: dict[str, type[PruningRule]] = {}


def register_rule(rule: R) -> R:
    """Make a class of rules known by its `kind`, so that files can name it; a class decorator.

    Raises:
        ObjectSeekerError: Another class has this kind, or a setting has no default value.

    Args:
        rule: A subclass of `PruningRule`.

    Returns:
        The same class.

    Example:
        >>> from objectseeker import Rule
        >>> register_rule(Rule) is Rule
        True
    """
    known = _KINDS.get(rule.kind)
    if known is not None and (known.__module__, known.__qualname__) != (rule.__module__, rule.__qualname__):
        raise ObjectSeekerError(
            f"two rules have one kind: got {rule.kind!r} of {known.__name__} and {rule.__name__}. Rename one of them."
        )
    for item in fields(rule):
        if isinstance(item.default, property):  # inherited from the interface
            raise ObjectSeekerError(f"a setting of a rule has no default: got {rule.__name__}.{item.name}. Add one.")
    _KINDS[rule.kind] = rule
    return rule


def registered_rules() -> tuple[type[PruningRule], ...]:
    """Return all registered classes of rules.

    Example:
        >>> "evidence" in [rule.kind for rule in registered_rules()]
        True
    """
    return tuple(_KINDS.values())


def rule_setting_names() -> tuple[str, ...]:
    """Return the names of the settings of all registered rules, each once.

    Example:
        >>> "filter_ioa" in rule_setting_names()
        True
    """
    return tuple(dict.fromkeys(name for rule in _KINDS.values() for name in rule.setting_names()))


def rule_from_dict(values: object) -> PruningRule:
    """Return the rule that `PruningRule.to_dict` made these values of.

    Args:
        values: The kind and the settings of a rule.

    Returns:
        The rule.

    Raises:
        ObjectSeekerError: The kind is unknown, or a setting is.

    Example:
        >>> from objectseeker import Rule
        >>> rule_from_dict(Rule(base_threshold=0.3).to_dict()) == Rule(base_threshold=0.3)
        True
    """
    if not isinstance(values, Mapping):
        raise ObjectSeekerError(f"its rule must be settings by name: got {values!r}")
    settings = dict(values)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ObjectSeekerError(
            f"its rule has an unknown kind: got {kind!r}. Use {', '.join(_KINDS)}, or import the module of the rule."
        )
    unknown = settings.keys() - set(_KINDS[kind].setting_names())
    if unknown:
        raise ObjectSeekerError(
            f"its rule has unknown settings: got {', '.join(sorted(map(str, unknown)))}. Remove them."
        )
    return _KINDS[kind].from_settings(settings)
