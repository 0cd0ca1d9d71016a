"""How the built-in detector is trained (see README.md). It uses the package and is no part of it."""
