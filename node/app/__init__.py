"""A running node put together: what `panal run` is. It is the one place that knows all
parts (docs/architecture.md).

`running` is the node, `serving` its part as an expert server, `answering` its part as a backbone. Nothing
but the command line imports this package.
"""
