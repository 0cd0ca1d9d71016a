"""The demonstration, and the photographs that come with the package."""
