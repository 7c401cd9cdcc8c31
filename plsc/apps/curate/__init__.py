"""Care for sets of images: look at them, find their errors, change their format."""
