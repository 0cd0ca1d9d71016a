"""Pruning rules: one interface, one file per rule."""

from objectseeker.core.rules.evidence import Rule
from objectseeker.core.rules.interface import (
    PruningRule,
    register_rule,
    registered_rules,
    rule_from_dict,
    rule_setting_names,
)
from objectseeker.core.rules.iou import IouRule

__all__ = [
    "IouRule",
    "PruningRule",
    "Rule",
    "register_rule",
    "registered_rules",
    "rule_from_dict",
    "rule_setting_names",
]
