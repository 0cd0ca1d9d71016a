"""The training of the built-in detector (see README.md). It uses the package and is not part of it."""
