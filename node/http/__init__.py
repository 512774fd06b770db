"""The one HTTP door of a node: a listener, what it lets in, and starlette routes behind it.

`door` accepts and ends; `connection` and `exchange` drive h11, which is HTTP without I/O; `guard` decides who
may ask; `refusals` is how "no" looks. Who has something to say gives routes (node.gateway, node.status).
Nothing here knows what the routes do.
"""
