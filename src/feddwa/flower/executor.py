"""Runs ClientApps as forks of one process that has imported everything.

Flower starts a process for every message, and importing torch often takes longer than a round of training. With
`--isolation process` a SuperNode leaves starting ClientApps to another program, such as this one:

    flower-supernode --isolation process --host 127.0.0.1 --port 9094 --superexec-auth-secret-file FILE ...
    python -m feddwa.flower.executor 127.0.0.1:9094 --secret FILE

Several SuperNodes of one machine can share an executor. It keeps running while they are offline, until it is stopped or
the process given by --parent ends. The secret keeps other users of the machine from taking a task, and so its message;
it must be readable by this user alone. A ClientApp that dies (memory, a fault in a library) is reported to the server
at once, which else waits for it until the deadline.
"""

import argparse
import contextlib
import importlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime import run_clientapp as clientapp

POLL = 0.05, 1.0  # seconds between two queries of all SuperNodes for tasks, at least and at most
PAUSE = 4.0  # the same as a multiple of the time that such a query takes, so that twenty nodes cost no core
SETTLE = 0.2  # seconds before a message is pulled: the SuperNode offers it before it is complete, and a retry takes 1 s
WARM = ("feddwa.flower.client", "torch._dynamo")  # all that a ClientApp imports until it trains
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"  # the call that the secret protects; a task has a token of its own
REPLIED = b"replied"  # what a fork writes behind the message once it has replied


@dataclass(frozen=True)
class Connection:
    """How the SuperNodes are reached."""

    insecure: bool
    certificates: bytes | None
    secret: bytes | None  # of the SuperNodes' --superexec-auth-secret-file

    def acquiring(self, address: str) -> RuntimeHttpClient:
        """A client that may take tasks."""
        version = RuntimeVersionHttpInterceptor("SuperExec")
        if self.secret is None:
            return self._client(address, version)
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=[ACQUIRE])
        return self._client(address, version, signed)

    def working(self, address: str, token: str) -> RuntimeHttpClient:
        """A client that may do what belongs to one task."""
        version = RuntimeVersionHttpInterceptor("flwr-clientapp")
        return self._client(address, version, RuntimeTokenHttpInterceptor(token))

    def _client(self, address: str, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(address, self.insecure, self.certificates, list(interceptors))


@dataclass(frozen=True)
class Fork:
    """A ClientApp at work."""

    address: str
    token: str
    pipe: int  # where it writes the message that it has received, and then that it has replied


def main() -> None:
    """Parse the command line, import, serve."""
    parser = argparse.ArgumentParser(description="Run the ClientApps of nodes as forks of one warm process.")
    parser.add_argument("addresses", nargs="+", help="of SuperNodes: their --host and --port")
    parser.add_argument("--root-certificates", help="where the addresses have TLS")
    parser.add_argument("--secret", type=Path, help="file: the SuperNodes' --superexec-auth-secret-file")
    parser.add_argument("--parent", type=int, help="process with which this one ends")
    options = parser.parse_args()
    for module in WARM:
        importlib.import_module(module)
    insecure = options.root_certificates is None
    certificates = validate_and_resolve_root_certificates(options.root_certificates, insecure)
    secret = None if options.secret is None else options.secret.read_bytes()
    serve(options.addresses, Connection(insecure, certificates, secret), options.parent)


def serve(addresses: list[str], connection: Connection, parent: int | None) -> None:
    """Fork for every message of the SuperNodes at `addresses`, until the process `parent` ends (None: for ever)."""
    clients = {address: connection.acquiring(address) for address in addresses}
    work = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    forks: dict[int, Fork] = {}
    while parent is None or _alive(parent):
        began = time.monotonic()
        for address, client in clients.items():
            try:
                task = client.AcquireTask(work)
            except httpx.TransportError:  # the SuperNode is offline
                continue
            except httpx.HTTPStatusError as error:
                print(f"{address}: {error}", file=sys.stderr, flush=True)
                time.sleep(1)
                continue
            if task.token:
                number, fork = _fork(address, task.token, connection)
                forks[number] = fork
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                _report(forks.pop(ended[0]), ended[1], connection)
        time.sleep(min(max(POLL[0], PAUSE * (time.monotonic() - began)), POLL[1]))


def _fork(address: str, token: str, connection: Connection) -> tuple[int, Fork]:
    """Start a fork that handles one message: its id, and what is known of it."""
    reading, writing = os.pipe()
    number = os.fork()
    if not number:
        os.close(reading)
        _run(address, token, connection, writing)
    os.close(writing)
    return number, Fork(address, token, reading)


def _run(address: str, token: str, connection: Connection, pipe: int) -> None:
    """In the fork: handle one message and note in the pipe how far it is, then exit."""
    try:
        time.sleep(SETTLE)
        pull, push = clientapp.pull_task_input, clientapp.push_message

        def pulled(client: RuntimeHttpClient) -> Any:
            found = pull(client)
            proto = message_to_proto(remove_content_from_message(found[0]))
            os.write(pipe, proto.SerializeToString().hex().encode() + b"\n")
            return found

        def pushed(client: RuntimeHttpClient, message: Message, context: Context) -> None:
            push(client, message, context)
            os.write(pipe, REPLIED)

        clientapp.pull_task_input, clientapp.push_message = pulled, pushed
        clientapp.run_clientapp(address, token, connection.insecure, connection.certificates, os.getppid())
    finally:
        os._exit(0)  # the SuperNode already has the result


def _report(fork: Fork, status: int, connection: Connection) -> None:
    """Reply in the place of a fork that has ended without a reply."""
    with os.fdopen(fork.pipe, "rb") as pipe:
        received, _, replied = pipe.read().partition(b"\n")
    if replied == REPLIED:
        return
    died = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.waitstatus_to_exitcode(status)}"
    reason = f"the ClientApp died ({died})"
    print(f"{fork.address}: {reason}", file=sys.stderr, flush=True)
    try:
        with connection.working(fork.address, fork.token) as client:
            message = _message(received) if received else clientapp.pull_task_input(client)[0]
            error = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
            run, node = message.metadata.run_id, message.metadata.dst_node_id
            clientapp.push_message(client, error, Context(run, node, {}, RecordDict(), {}))
            clientapp.push_task_output(client, None, SubStatus.FAILED, reason)
    except Exception as failure:  # the SuperNode may be gone too; the others still need the executor
        print(f"{fork.address}: not reported: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)


def _message(noted: bytes) -> Message:
    """The message, without its content, that a fork has noted."""
    return message_from_proto(ProtoMessage.FromString(bytes.fromhex(noted.decode())))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
