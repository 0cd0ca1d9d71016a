"""The demonstration, and the sample images of the package."""
