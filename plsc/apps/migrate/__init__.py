"""Import weights of other programs: `plsc import`."""
