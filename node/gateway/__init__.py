"""The OpenAI-compatible API: requests in their shape, answers in their shape, one decoder behind it.

`bodies` and `requests` turn JSON into what is wanted, `stop_strings` and `text_flow` turn tokens into
text, `answers`, `logprobs` and `usage` write it down: all pure. `answering` talks to the decoder, `app`
has the routes. Nothing but a `Speaker` is known of who answers.
"""
