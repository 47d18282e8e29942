"""A cell that spans several nodes: the first does it, the others lend their devices.

All nodes are tasks of one job and see the store. When the first comes to training it leaves a call
in the job's folder, and every other node answers with a torchrun agent of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from dflash.lab.stages.common import read_json, write_json
from dflash.model.errors import UserError
from dflash.training.config import TrainConfig

CALLS = "DFLASH_CALLS"  # environment: the job's folder, set by the executor on every node
ENDED = "ended"
POLL = 0.5  # seconds between looks for a call


def call_nodes(config: TrainConfig, work: Path) -> list[str]:
    """Call the other nodes; torchrun's command for this one, the first.

    Args:
        work: what the ranks are to do, see :mod:`dflash.lab.stages.ranks`.

    Raises:
        UserError: there are no other nodes to call.
    """
    folder = os.environ.get(CALLS)
    if folder is None:
        raise UserError.of("train.nodes", config.nodes, "1, or executor.kind=slurm")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    call = {
        "nodes": config.nodes,
        "devices": config.devices,
        "address": socket.gethostname(),
        "port": port,
        "work": str(work.absolute()),
    }
    number = len(list(Path(folder).glob("call-*.json")))
    write_json(_call(Path(folder), number), call)
    return agent(call, node=0)


def answer_calls(folder: Path, node: int) -> None:
    """On another node: start its ranks whenever the first calls, until that has ended.

    A failure here is told by the first node, whose own ranks then fail, too.
    """
    number = 0
    while True:
        if _call(folder, number).is_file():
            call = read_json(_call(folder, number))
            run_agent(agent(call, node), call["devices"])
            number += 1
        elif (folder / ENDED).is_file():
            return
        else:
            time.sleep(POLL)


def agent(call: dict[str, str | int], node: int) -> list[str]:
    """torchrun's command on one node."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={call['nodes']}",
        f"--node-rank={node}",
        f"--nproc-per-node={call['devices']}",
        f"--master-addr={call['address']}",
        f"--master-port={call['port']}",
        *("-m", "dflash.lab.stages.rank", str(call["work"])),
    ]


def run_agent(command: list[str], devices: int) -> int:
    """Run torchrun, the threads divided among the node's ranks; its exit status."""
    threads = max(1, torch.get_num_threads() // devices)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # the ranks end when it is closed, however this process dies
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    try:
        return process.wait()
    finally:
        assert process.stdin is not None
        process.stdin.close()


def _call(folder: Path, number: int) -> Path:
    return folder / f"call-{number}.json"
