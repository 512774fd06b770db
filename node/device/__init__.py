"""The device and its owner: where a node's own files lie, that one process uses them, when it serves and
what, how it starts with the machine, its log, and what a report about it may say.

May import the rest of node. The rules (schedule, device_use, pause_rules, serving_choice, redaction,
service_files) are pure.
"""
