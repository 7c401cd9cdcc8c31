"""The programs around a run. Each app has its own folder.

The core imports no app. Each app can be read without the others.
"""
