"""Video: frames from files, cameras, streams and folders, defended, and written as annotated video."""
