"""Benchmarks, run by `objectseeker bench`: each measures ours and the naive way side by side."""
