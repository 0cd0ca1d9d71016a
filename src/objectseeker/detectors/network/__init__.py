"""The parts that detectors around a network share: placement, masking, decoding, class names."""
