"""Read weights of other programs: `plsc import`."""
