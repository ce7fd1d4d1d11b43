"""A real, private RabbitMQ cluster: three nodes on this machine, with one Erlang cookie and one port mapper."""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from tests.services.rabbitmq import RabbitMQ
from tests.services.server import Server, free_port

NODES = 3
STOP_SECONDS = 60


class Node(RabbitMQ):
    """A node of a cluster. Its port mapper is the cluster's."""

    def __init__(self, port_mapper_port: int, cookie: str) -> None:
        super().__init__()
        self._environment["ERL_EPMD_PORT"] = str(port_mapper_port)
        file = self.folder / ".erlang.cookie"
        file.chmod(0o600)
        file.write_text(cookie)
        file.chmod(0o400)

    @property
    def node(self) -> str:
        return self._node

    def know(self, nodes: list[str]) -> None:
        """Form a cluster with these, when started for the first time."""
        known = "".join(f"cluster_formation.classic_config.nodes.{n} = {node}\n" for n, node in enumerate(nodes, 1))
        with (self.folder / "rabbitmq.conf").open("a") as settings:
            settings.write(f"cluster_formation.peer_discovery_backend = classic_config\n{known}")

    def begin(self) -> None:
        """Start, and return before it serves: the nodes wait for each other."""
        if not self.running:
            self._boot()

    def wait(self) -> None:
        """Return when it serves."""
        assert self._broker is not None
        self._wait_until_it_serves(self._broker)

    def start(self) -> None:
        self.begin()
        self.wait()

    def evaluate(self, expression: str) -> str:
        return self._evaluate(expression)


class RabbitMQCluster(Server):
    """Three nodes. `with` starts and stops them; each can be killed and started meanwhile."""

    def __init__(self) -> None:
        super().__init__("rabbitmq-cluster")
        self._port_mapper_port = free_port()
        self._port_mapper: subprocess.Popen[bytes] | None = None
        cookie = secrets.token_hex(16)
        self.nodes = [Node(self._port_mapper_port, cookie) for _ in range(NODES)]
        for node in self.nodes:
            node.know([each.node for each in self.nodes])

    def start(self) -> None:
        if self._port_mapper is None:
            address = ("-address", "127.0.0.1", "-port", str(self._port_mapper_port))
            self._port_mapper = subprocess.Popen(["epmd", *address], start_new_session=True)
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            node.wait()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._port_mapper is not None:
            self._port_mapper.kill()
            self._port_mapper.wait(STOP_SECONDS)
            self._port_mapper = None

    def close(self) -> None:
        super().close()
        for node in self.nodes:
            node.close()

    def url(self, vhost: str) -> str:
        """The URL of all nodes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"amqp://guest:guest@{hosts}/{quote(vhost, safe='')}"

    def create_vhost(self) -> str:
        """The name of a fresh virtual host."""
        return self.nodes[0].create_vhost().rpartition("/")[2]

    def running(self) -> Iterator[Node]:
        """The nodes that run and are members of the cluster."""
        return (node for node in self.nodes if node.running)

    def queues(self, vhost: str) -> str:
        """What the queues have, for a test that fails."""
        columns = ("name", "type", "messages_ready", "messages_unacknowledged", "consumers", "state")
        return next(self.running()).ctl("list_queues", "-p", vhost, *columns)

    def leader(self, vhost: str, queue: str) -> Node:
        """The node that leads a quorum queue."""
        name = f'rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>)'
        for asked in self.running():
            with suppress(ValueError):
                answer = asked.evaluate(
                    f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), "
                    "{_, Node} = amqqueue:get_pid(Q), atom_to_list(Node)."
                )
                return next(node for node in self.nodes if node.node in answer)
        raise LookupError(f"no node knows the queue {queue!r}")
