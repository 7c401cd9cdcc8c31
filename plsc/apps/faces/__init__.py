"""Detect faces in photos and crop them aligned, with published networks that OpenCV runs."""
