"""A federation on one machine: a SuperLink and SuperNodes with registered keys, connected by TLS."""

import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from feddwa.flower import app
from feddwa.flower.control import Control
from feddwa.flower.credentials import Certificates, make_certificates, make_node_key, make_secret
from feddwa.flower.processes import Processes, answers, free_port

PACKAGE = Path(__file__).parents[2]  # the folder of this feddwa, for the PYTHONPATH of the processes
STARTS_IN = 90.0  # seconds that the SuperLink has to start


@dataclass
class LocalFederation:
    """A context manager: the processes run while the context is open, and all their files are in one folder.

    Keys and other secrets are removed when it closes. Where this process is killed, the whole folder is.
    """

    folder: Path
    nodes: int
    node_config: dict[str, str] = field(default_factory=dict)  # of all nodes, in addition to their partition
    insecure: bool = False  # neither TLS nor keys
    warm: bool = True  # ClientApps are forks of the executor, which has imported everything
    database: bool = False  # whether the SuperLink's state survives a restart
    keys: Path | None = None  # folder of the nodes' keys; missing ones are made; None: that of the other secrets
    poll: float = 0.5  # seconds between two queries for runs by the SuperLink's executor; Flower's default is 1
    port: int = field(default_factory=free_port)  # of the SuperLink

    def __enter__(self) -> "LocalFederation":
        home = self.folder / "flwr"
        home.mkdir(parents=True)
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.nodes))}
        package = {"PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])}
        poll = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(self.poll)}
        own = {"FLWR_HOME": str(home), "TMPDIR": str(self.folder / "tmp")}  # a killed ClientApp leaves files there
        (self.folder / "tmp").mkdir()
        self.environment = {**threads, **os.environ, **poll, **package, **own}
        self.processes = Processes(self.folder, self.environment)
        self.secrets = self.folder / "secrets"
        self.node_ports = [free_port() for _ in range(self.nodes)]
        try:
            self.secrets.mkdir(mode=0o700)
            self.certificates: Certificates | None = None if self.insecure else make_certificates(self.secrets)
            self.secret = make_secret(self.secrets / "executor.secret")
            self.app = self.folder / "feddwa-app"
            app.write(self.app)
            if self.warm:
                work = [sys.executable, "-m", "feddwa.flower.executor", "--parent", str(os.getpid())]
                work += ["--secret", str(self.secret), "--"]
                self.processes.start(
                    "executor", [*work, *(f"127.0.0.1:{port}" for port in self.node_ports)], self.folder
                )
            self.start_superlink()
            authority = None if self.certificates is None else self.certificates.authority
            self.control = Control(f"127.0.0.1:{self.port}", authority)
            for number in range(self.nodes):
                if not self.insecure:
                    key = self.key(number)
                    self.control.register(key.with_suffix(".pub") if key.exists() else make_node_key(key))
                self.start_node(number)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.control.close()
        self._close()

    def _close(self) -> None:
        self.processes.stop()
        shutil.rmtree(self.secrets, ignore_errors=True)

    def key(self, number: int) -> Path:
        """Path of a node's private key."""
        return (self.keys or self.secrets) / f"node-{number}.key"

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it accepts connections."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        if self.database:
            command += ["--database", str(self.folder / "superlink.db")]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self.certificates.authority)]
            command += ["--ssl-certfile", str(self.certificates.certificate)]
            command += ["--ssl-keyfile", str(self.certificates.key), "--enable-supernode-auth"]
        self.processes.start("superlink", command, self.folder)
        ends = time.monotonic() + STARTS_IN
        while not answers(self.port):
            if "superlink" in self.processes.ended() or time.monotonic() > ends:
                raise RuntimeError(f"the SuperLink did not start; see {self.processes.logs / 'superlink.log'}")
            time.sleep(0.1)

    def start_node(self, number: int) -> None:
        """Start a SuperNode with its block of clients.

        A SuperLink takes up to a minute to notice that a SuperNode was killed, and refuses its key until then.
        """
        own = "".join(f' {name}="{value}"' for name, value in self.node_config.items())
        config = f"partition-id={number} num-partitions={self.nodes}{own}"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--node-config", config]
        command += ["--host", "127.0.0.1", "--port", str(self.node_ports[number])]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.certificates.authority)]
            command += ["--auth-supernode-private-key", str(self.key(number))]
        if self.warm:
            command += ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
        self.processes.start(f"node-{number}", command, self.folder)
