"""Care for sets of images: inspect them, find their errors and convert their format."""
