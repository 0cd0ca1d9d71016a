"""Benchmarks: each compares objectseeker with the naive implementation, in the same run.

    python -m benchmarks.certify     certifying and pruning, against bitmaps and loops
    python -m benchmarks.evaluate    an evaluation from stored boxes, against pruning again at every threshold
    python -m benchmarks.detect      all masked views of an image, against a loop of single forward passes
    python -m benchmarks.observe     a dataset from files to a finished run, against its views alone

Run them in the root of a clone. `--help` lists the options of each.
"""
