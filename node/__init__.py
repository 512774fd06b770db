"""The device: command line, config, engine, backbone, expert server. The top of the house:
it may import everything below (`relay`, `market`, `routing`); nothing imports it.
"""
