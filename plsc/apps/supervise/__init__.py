"""Run the ranks of one machine or of several, and start them again when one dies: `plsc run`. Read
supervisor.py, then job.py."""
