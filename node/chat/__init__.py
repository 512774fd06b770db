"""A chat in the terminal with a node's own model: `panal chat`.

`conversation` keeps what was said and knows the commands, `events` reads the API's stream: both pure.
`lines` and `screen` are the terminal. A partner answers: the node that runs (`through_http`), or one that
runs in this process for as long as the chat (`inside`); both by the same requests. `talking` puts them
together.
"""
