"""A run: what a detector saw of every view of every image, written by `observe`, read by everything after it."""
