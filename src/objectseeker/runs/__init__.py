"""Runs: a detector's boxes in every view of every image, written by `observe` and read by the rest."""
