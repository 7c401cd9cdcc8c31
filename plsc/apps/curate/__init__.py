"""Care for image sets: inspect them, find their errors and convert their format."""
