"""Care for sets of images: find their errors (`plsc doctor`), change the format (`plsc convert`)."""
