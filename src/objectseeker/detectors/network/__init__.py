"""What detectors around a network share: placing, masking, running, decoding, naming."""
