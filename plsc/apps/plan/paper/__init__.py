"""Calculate what a step takes on a cluster that is not there: `plsc plan --nodes N --gpus N`. Read
on_paper.py, then cluster.py."""
