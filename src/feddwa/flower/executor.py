"""Runs ClientApps as forks of one process that has imported everything.

Flower starts a process for every message, and importing torch often takes longer than a round of training. With
`--isolation process` a SuperNode leaves starting ClientApps to another program, such as this one:

    flower-supernode --isolation process --host 127.0.0.1 --port 9094 ...
    python -m feddwa.flower.executor 127.0.0.1:9094

Several SuperNodes of one machine can share an executor. It keeps running while they are offline, until it is stopped or
the process given by --parent ends.
"""

import argparse
import contextlib
import importlib
import os
import sys
import time

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

POLL = 0.05  # seconds between two queries for tasks
SETTLE = 0.2  # seconds before a message is pulled: the SuperNode offers it before it is complete, and a retry takes 1 s
WARM = ("feddwa.flower.client", "torch._dynamo")  # all that a ClientApp imports until it trains


def main() -> None:
    """Parse the command line, import, serve."""
    parser = argparse.ArgumentParser(description="Run the ClientApps of nodes as forks of one warm process.")
    parser.add_argument("addresses", nargs="+", help="of SuperNodes: their --host and --port")
    parser.add_argument("--root-certificates", help="where the addresses have TLS")
    parser.add_argument("--parent", type=int, help="process with which this one ends")
    options = parser.parse_args()
    for module in WARM:
        importlib.import_module(module)
    serve(options.addresses, options.root_certificates, options.parent)


def serve(addresses: list[str], root_certificates: str | None, parent: int | None) -> None:
    """Fork for every message of the SuperNodes at `addresses`, until the process `parent` ends (None: for ever)."""
    insecure = root_certificates is None
    certificates = validate_and_resolve_root_certificates(root_certificates, insecure)
    version = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    clients = {
        address: RuntimeHttpClient.from_server_address(address, insecure, certificates, version)
        for address in addresses
    }
    work = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while parent is None or _alive(parent):
        for address, client in clients.items():
            try:
                task = client.AcquireTask(work)
            except httpx.TransportError:  # the SuperNode is offline
                continue
            except httpx.HTTPStatusError as error:
                print(f"{address}: {error}", file=sys.stderr, flush=True)
                time.sleep(1)
                continue
            if task.token and os.fork() == 0:
                _run(address, task.token, insecure, certificates)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL)


def _run(address: str, token: str, insecure: bool, certificates: bytes | None) -> None:
    """In the fork: handle one message, then exit."""
    try:
        time.sleep(SETTLE)
        run_clientapp(address, token, insecure, certificates, os.getppid())
    finally:
        os._exit(0)  # the SuperNode already has the result


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
