"""The control API of a SuperLink, as `flwr` in a shell: register keys, start a run, read its status and log."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StreamLogsRequest
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from feddwa.flower.settings import FlowerConfig, to_run_config


class Control:
    """A client of the control API. The API has no login: whoever reaches it can call all of these methods."""

    def __init__(self, address: str, authority: Path | None) -> None:
        certificates = None if authority is None else authority.read_bytes()
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        self.client = ControlHttpClient.from_server_address(address, authority is None, certificates, interceptors)

    def register(self, public_key: Path) -> int:
        """Register a node's public key file; returns the node id."""
        key = public_key_to_bytes(load_ssh_public_key(public_key.read_bytes()))  # type: ignore[arg-type]
        return int(self.client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id)

    def start(self, app: Path, config: FlowerConfig) -> int:
        """Start a run of the app in a folder; returns the run id."""
        fab = build_fab_from_disk(app)
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto(to_run_config(config)),
        )
        return int(self.client.StartRun(request).run_id)

    def status(self, run: int) -> RunStatus:
        """Status of a run: `status` is pending, starting, running or finished; `sub_status` then says how it ended."""
        status: RunStatus = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return status

    def log(self, run: int) -> Iterator[str]:
        """Log of the ServerApp of a run, in pieces, until the run has ended."""
        return (piece.log_output for piece in self.client.StreamLogs(StreamLogsRequest(run_id=run)))

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
