"""A real, private RabbitMQ server: a node, an Erlang cookie, a port mapper and ports of its own."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.services.server import Server, ServerMissing, free_port, output_of, stop

SETTINGS = """
listeners.tcp.1 = 127.0.0.1:{port}
log.console = false
# A full disk on the machine that runs the tests is not what they are about.
disk_free_limit.absolute = 1MB
"""

START_SECONDS = 120
STOP_SECONDS = 60
ALARM_SECONDS = 60


class RabbitMQ(Server):
    """A RabbitMQ server with its user `guest` and no plugins."""

    def __init__(self) -> None:
        self._home = find()
        super().__init__("rabbitmq")
        self.port = free_port()
        self._port_mapper_port = free_port()
        self._node = f"postroad-{uuid.uuid4().hex[:8]}@localhost"
        self._broker: subprocess.Popen[bytes] | None = None
        self._port_mapper: subprocess.Popen[bytes] | None = None
        self._environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._port_mapper_port),
            "ERL_LIBS": str(self.folder / "libraries"),
            "RABBITMQ_HOME": str(self._home),
            "RABBITMQ_PLUGINS_DIR": str(self.folder / "libraries"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "no-environment-file"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        self._furnish()

    def start(self) -> None:
        if self.running:
            return
        self.kill()  # the port mapper may have outlived a broker that ended by itself
        self._port_mapper = self._spawn("epmd", "-address", "127.0.0.1", "-port", str(self._port_mapper_port))
        self._wait_until_it_serves(self._boot())

    def _boot(self) -> subprocess.Popen[bytes]:
        # Erlang is started without RabbitMQ's script, so that the process we hold is the broker and no shell.
        quiet_syslog = ("-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false")
        here = ("-kernel", "inet_dist_use_interface", "{127,0,0,1}")
        self._broker = self._spawn(
            "erl", "-noinput", "-boot", "start_sasl", *here, "-s", "rabbit", "boot", *quiet_syslog
        )
        return self._broker

    def stop(self) -> None:
        if self._broker is not None and self.running:
            self._broker.terminate()
            self._broker.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the broker with SIGKILL: what it has not written is lost."""
        for process in (self._broker, self._port_mapper):
            if process is not None:
                process.kill()
                process.wait(STOP_SECONDS)
        self._broker = self._port_mapper = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        return self._broker is not None and self._broker.poll() is None

    def url(self, vhost: str = "/") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def create_vhost(self) -> str:
        """A fresh virtual host in which guest may do everything; returns its URL."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self._evaluate(
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"guest">>), rabbit_auth_backend_internal:set_permissions('
            f'<<"guest">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"guest">>).'
        )
        return self.url(name)

    def delete_vhost(self, url: str) -> None:
        """Delete a virtual host of create_vhost() with all that is in it; its connections are closed."""
        self._evaluate(f'rabbit_vhost:delete(<<"{url.rpartition("/")[2]}">>, <<"guest">>).')

    def block(self) -> None:
        """Raise the memory alarm: whoever publishes from now on is blocked."""
        self._set_memory_limit("0", alarm=True)

    def unblock(self) -> None:
        self._set_memory_limit("0.4", alarm=False)

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl on this node; returns what it prints. It takes half a second."""
        return self._run([self._home / "sbin/rabbitmqctl", "-q", "-n", self._node, *arguments])

    def _set_memory_limit(self, share_of_memory: str, *, alarm: bool) -> None:
        self._evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({share_of_memory}).")
        raised = "lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())."
        deadline = time.monotonic() + ALARM_SECONDS
        while (self._evaluate(raised) == "true") is not alarm:
            if time.monotonic() > deadline:
                raise TimeoutError(f"RabbitMQ's memory alarm did not become {alarm}")
            time.sleep(0.01)

    def _evaluate(self, expression: str) -> str:
        """Evaluate Erlang in the broker: what rabbitmqctl does in half a second this does in milliseconds."""
        said = self._call(f"{expression}\n")
        answer = re.fullmatch(r"\{ok, ?(.*)\}", said.strip(), re.DOTALL)
        if answer is None:
            raise ValueError(f"RabbitMQ answered {said!r} to {expression!r}")
        return answer[1]

    def _call(self, stdin: str) -> str:
        """A node that is busy, or has just been started, may refuse a connection. Nothing was evaluated then."""
        deadline = time.monotonic() + ALARM_SECONDS
        while True:
            try:
                return self._run(["erl_call", "-sname", self._node, "-timeout", "10", "-e"], stdin=stdin)
            except subprocess.CalledProcessError as error:
                if "failed to connect" not in error.stderr or not self.running or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _run(self, command: list[str | Path], stdin: str = "") -> str:
        done = subprocess.run(
            command, input=stdin, check=False, capture_output=True, text=True, env=self._environment, cwd=self.folder
        )
        return output_of(done)

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        # In a session of its own, so that Ctrl-C in the terminal is ours alone to deal with.
        with (self.folder / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _furnish(self) -> None:
        (self.folder / "rabbitmq.conf").write_text(SETTINGS.format(port=self.port))
        (self.folder / "enabled_plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        # Erlang looks for each module in every folder on its path, and RabbitMQ brings seventy. With only those that
        # the broker needs it starts in a third of the time.
        libraries = self.folder / "libraries"
        libraries.mkdir()
        for library in needed_by("rabbit", self._home / "plugins", set()):
            (libraries / library.name).symlink_to(library)

    def _wait_until_it_serves(self, broker: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not greets(self.port):
            if broker.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"RabbitMQ did not start:\n{(self.folder / 'output').read_text()}")
            time.sleep(0.05)


def greets(port: int) -> bool:
    """Whether an AMQP server answers there; it is the last thing that RabbitMQ starts."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def find() -> Path:
    """RabbitMQ's home, the folder with its `plugins` and `sbin`."""
    # Debian puts a wrapper on the PATH that runs as nobody but its own user; the server itself is in /usr/lib.
    homes = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    on_path = shutil.which("rabbitmq-server")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    for home in homes:
        if (home / "plugins").is_dir() and all(map(shutil.which, ("erl", "epmd", "erl_call"))):
            return home
    raise ServerMissing("RabbitMQ", "apt-get install rabbitmq-server")


def needed_by(application: str, libraries: Path, found: set[Path]) -> set[Path]:
    """The folders of an Erlang application and of all that it depends on, as far as they are in `libraries`."""
    for description in libraries.glob(f"{application}-*/ebin/{application}.app"):
        library = description.parent.parent
        if library not in found:
            found.add(library)
            dependencies = re.search(r"\{applications,\s*\[([^]]*)]", description.read_text())
            for dependency in re.findall(r"\w+", dependencies[1] if dependencies else ""):
                needed_by(dependency, libraries, found)
    return found


@contextmanager
def frozen(server: RabbitMQ) -> Iterator[None]:
    """The server is there, and does nothing."""
    assert server._broker is not None
    stop(server._broker)
    try:
        yield
    finally:
        server._broker.send_signal(signal.SIGCONT)
