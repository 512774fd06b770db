"""Measure sessions that are decoded together against one alone, and a chat's second turn, on an emulated WAN.

Run by `scripts/bench_sessions [--json] [--rounds N] [--one-way MS] [--sessions N] [--tokens N]` as root, with
the lab (wanlab). Nothing leaves the machine.

Three real `panal run` servers with a third of the experts each, and a backbone with a continuous decoder
(node.decode.continuous). In turns, from nothing in any cache:

    one       one session: a prompt of real code and so many tokens
    together  as many sessions at once, each with a prompt of its own; the first is the same as alone
    guessing  one session again, with guesses (draft = auto): what else one alone could do

`x one` is tokens a second, prompts included, over those of one session without guesses. Tokens of the first
session must be the same every time. Then a chat: the prompt tokens of its second turn that are computed anew
although they, or their answer, were computed in the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from node.importing import import_model
from node.engine import library as llama
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.backbone_lab import BackboneLab
from scripts.bench.engine_model import positive
from scripts.bench.lab_run import run_in
from tests.conftest import DEMO_MODEL
