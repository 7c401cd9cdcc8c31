"""Read weights, class centres and training configs of other programs: `plsc import`, and the published PLSC's
`set_*` calls."""
