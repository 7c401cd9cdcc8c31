"""Recognize people in pictures over HTTP."""
