"""One MoE call spread over expert servers: who computes what, asked at once, put together again.

`plan` and `combine` are pure; `star` is the thin trio part that sends, waits and asks again elsewhere.
"""
