"""Hold the networks that make embeddings; each is one class, and a user's own is named in the config as
`package.module:Class`."""
