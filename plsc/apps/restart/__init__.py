"""Train on several processes of this machine, and restart what died."""
