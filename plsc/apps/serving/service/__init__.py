"""Answer over HTTP: whose picture is this, are these two the same? `create_app` makes the ASGI
application."""
