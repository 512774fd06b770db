"""The models in the status: which cells are where."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from node.status.facts.runs import Runs


class Model(Struct, frozen=True):
    """A model of which somebody in the swarm, or this node, has something.

    Attributes:
        id: 64 hexadecimal digits; short_id: the first 12.
        name: of the file it came from, "" if this node does not have it.
        here: what this node does with it: "serves", "backbone"; empty: it only heard of it.
        layers: numbers of the layers with experts, ascending: the rows of the matrix. Of a model that this
            node does not have, those that others tell of.
        experts: in a layer, the most there are: the columns of the matrix.
        expert_bytes: of all experts together; null if this node does not have the model.
        nodes: live nodes that serve any of it, this one included.
        replicas: the matrix: for each layer, for each expert, on how many live nodes it is served, this one
            included if it serves. One byte each, 255 for more, row by row, base64.
        wanted_replicas: with so many a cell is not scarce.
        scarcity: the same matrix in 255ths, base64: where replicas are lacking, or prices are high between
            floor and cap, the greater of both; null where everything is free, or nobody quotes: then a cell's
            scarcity is max(0, 1 - replicas / wanted_replicas).
        home: cells that this node's backbone computes itself; they are not in `replicas`.
        missing: cells that nobody serves and that are not at home; missing_cells: how many.
    """

    id: str
    short_id: str
    name: str
    architecture: str
    here: list[Literal["serves", "backbone"]]
    layers: list[int]
    experts: int
    expert_bytes: int | None
    nodes: int
    replicas: str
    wanted_replicas: int
    scarcity: str | None
    home: Runs
    missing: Runs
    missing_cells: int
