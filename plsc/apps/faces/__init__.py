"""Find faces in photos and cut them out aligned, by published networks that OpenCV runs."""
