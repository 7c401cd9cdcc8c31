"""The networks that compute embeddings. Each is one class. A config names a user's own network as
`package.module:Class`."""
