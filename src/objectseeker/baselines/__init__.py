"""Other certified defences, under the same protocol: what ObjectSeeker is to be compared with."""
