"""Answer over HTTP whom a picture shows."""
