"""Import other programs' weights: `plsc import`."""
