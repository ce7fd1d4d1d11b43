"""A real, private Kafka cluster (KRaft): one broker or three, with listeners in the clear, with SASL and with TLS.

Its programs are in `kafka_jars`. Brokers are formatted without Java: what its tool writes is the same for all of them,
but for two ids.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.services import kafka_jars
from tests.services.server import Server, free_port, stop

START_SECONDS = 60
STOP_SECONDS = 60
ASK_SECONDS = 60

MEMORY = ("-XX:+UseSerialGC", "-Xms64m", "-Xmx400m", "-XX:+ExitOnOutOfMemoryError")
FULL_SPEED = (f"-XX:SharedArchiveFile={kafka_jars.home() / kafka_jars.CLASSES}", "-Xshare:auto", "-Xlog:disable")
QUICK_START = (*FULL_SPEED, "-XX:TieredStopAtLevel=1")
"""For tests: Java spends little time on compiling, and its code is good enough."""

COORDINATORS = 3
"""How many partitions the logs of groups and of transactions have."""
GROUPS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"

PLAIN_USERS = {"shop": "shop-secret", "guest": "guest-secret"}
"""Users of the mechanism PLAIN, and their passwords. They may do nothing before `allow`."""

SETTINGS = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
log.dirs={folder}/data
listeners=CONTROLLER://127.0.0.1:{controller},CLEAR://127.0.0.1:{clear},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},\
SASLTLS://127.0.0.1:{sasl_tls}
advertised.listeners=CLEAR://127.0.0.1:{clear},SASL://127.0.0.1:{sasl},TLS://localhost:{tls},\
SASLTLS://localhost:{sasl_tls}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLEAR:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,SASLTLS:SASL_SSL
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLEAR

authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
{plain_users};
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \
required unsecuredLoginStringClaim_sub="broker";
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={tls_files}/server.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={tls_files}/ca.pem
listener.name.tls.ssl.client.auth=requested
listener.name.sasltls.ssl.keystore.type=PEM
listener.name.sasltls.ssl.keystore.location={tls_files}/server.pem
listener.name.sasltls.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasltls.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;

auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=3
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=2
num.replica.fetchers=1
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
"""


class Kafka(Server):
    """A cluster of brokers, numbered from 1, each of which can be stopped, killed and frozen alone.

    Clients without a user, in the clear, may do everything. Topics have to be created. Further settings of the brokers
    are keywords: `Kafka(3, broker_session_timeout_ms="3000")`.
    """

    def __init__(self, brokers: int = 1, *, java_options: Sequence[str] = QUICK_START, **settings: str) -> None:
        kafka_jars.find()
        super().__init__("kafka")
        make_certificates(self.folder)
        cluster = small_uuid()
        controllers = {node: free_port() for node in range(1, brokers + 1)}
        common = {
            "voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
            "copies": str(brokers),
            "in_sync": str(min(brokers, 2)),
            "plain_users": " ".join(f'user_{user}="{password}"' for user, password in PLAIN_USERS.items()),
            "tls_files": str(self.folder),
        }
        more = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items())
        self.brokers = [
            Broker(
                self.folder / f"broker-{node}",
                {"version": "1", "cluster.id": cluster, "node.id": str(node), "directory.id": small_uuid()},
                SETTINGS + more,
                common | {"controller": str(port)},
                java_options,
            )
            for node, port in controllers.items()
        ]
        self._admin: AdminClient | None = None

    # -- running -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the brokers that do not run, and return when all of them and the controller serve.

        Brokers that a test has frozen or killed sometimes run on without serving: they are killed and started again.
        """
        if not self._serve_within(START_SECONDS):
            self.kill()
            if not self._serve_within(START_SECONDS):
                outputs = "\n".join(f"broker {broker.node}: {broker.output}" for broker in self.brokers)
                raise RuntimeError(f"Kafka did not start:\n{outputs}")

    def _serve_within(self, seconds: float) -> bool:
        for broker in self.brokers:
            broker.spawn()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and all(broker.running for broker in self.brokers):
            if self._all_serve() and self._controller_serves():
                return True
        return False

    def stop(self) -> None:
        for broker in self.brokers:
            broker.terminate()
        for broker in self.brokers:
            broker.end()

    def kill(self) -> None:
        """End all brokers with SIGKILL: Kafka confirms what is in the memory of the in-sync replicas' machines."""
        for broker in self.brokers:
            broker.kill()

    def freeze(self) -> None:
        """Stop all brokers' threads; connections stay, and are silent."""
        for broker in self.brokers:
            broker.freeze()

    def thaw(self) -> None:
        for broker in self.brokers:
            broker.thaw()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.kill()  # nothing is kept, so there is no good order
        super().close()

    def broker(self, node: int) -> Broker:
        return self.brokers[node - 1]

    def _all_serve(self) -> bool:
        """Each broker is asked alone: only then is it known that it takes requests itself."""
        try:
            for broker in self.brokers:
                if len(asking(broker.clear).list_topics(timeout=2).brokers) < len(self.brokers):
                    return False
        except KafkaException:
            return False
        return True

    def _controller_serves(self) -> bool:
        """Brokers answer from what they remember, also without a controller."""
        try:
            asked = asking(self.brokers[0].clear).create_topics
            return bool(done(asked([NewTopic("none", 1, 1)], validate_only=True, request_timeout=5)))
        except (KafkaException, TimeoutError):
            return False

    # -- where it is -------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The brokers in the clear, as librdkafka's bootstrap.servers."""
        return ",".join(f"127.0.0.1:{broker.clear}" for broker in self.brokers)

    @property
    def sasl(self) -> str:
        return ",".join(f"127.0.0.1:{broker.sasl}" for broker in self.brokers)

    @property
    def tls(self) -> str:
        """The certificate is for localhost, signed by `ca_file`."""
        return ",".join(f"localhost:{broker.tls}" for broker in self.brokers)

    @property
    def sasl_tls(self) -> str:
        """The same certificate, and users of SCRAM-SHA-512."""
        return ",".join(f"localhost:{broker.sasl_tls}" for broker in self.brokers)

    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def client_files(self) -> tuple[Path, Path]:
        """A certificate and its key, for the user CN=client."""
        return self.folder / "client-cert.pem", self.folder / "client-key.pem"

    # -- topics, users, rights ---------------------------------------------------------------------------------------

    @property
    def admin(self) -> AdminClient:
        """A client that may do everything. Its methods block."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def create_topic(self, name: str | None = None, partitions: int = 1, copies: int = -1, **settings: str) -> str:
        """Create a topic and return its name, a new one unless it is given: `create_topic(max_message_bytes="1000")`.

        Returns when all brokers that run know it.
        """
        name = name or f"test-{uuid.uuid4().hex[:12]}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        done(self.admin.create_topics([NewTopic(name, partitions, copies, config=config)]))
        for broker in self.brokers:
            if broker.running and not broker.frozen:
                until(partial(has_leaders, asking(broker.clear), name, partitions), f"the topic {name} has leaders")
        return name

    def delete_topic(self, name: str) -> None:
        done(self.admin.delete_topics([name]))

    def create_user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        """A user of SCRAM, or another password for one."""
        info = ScramCredentialInfo(getattr(ScramMechanism, mechanism.replace("-", "_")), 4096)
        user = UserScramCredentialUpsertion(name, info, password.encode())
        done(self.admin.alter_user_scram_credentials([user]))

    def allow(self, user: str, topic: str, *operations: str, kind: str = "TOPIC") -> None:
        """Grant the user operations such as WRITE, READ, DESCRIBE on a topic, or on another KIND of resource."""
        done(
            self.admin.create_acls(
                [
                    AclBinding(
                        ResourceType[kind],
                        topic,
                        ResourcePatternType.LITERAL,
                        f"User:{user}",
                        "*",
                        AclOperation[operation],
                        AclPermissionType.ALLOW,
                    )
                    for operation in operations
                ]
            )
        )

    def settings_of(self, topic: str) -> dict[str, str]:
        """The topic's settings, defaults and all."""
        (found,) = done(self.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))
        return {name: str(entry.value) for name, entry in found.items()}

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the broker that leads the partition; -1 while none does."""
        return int(self.admin.list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions[partition].leader)

    def coordinator(self, name: str, log: str = GROUPS) -> int:
        """The number of the broker that coordinates a group or, with TRANSACTIONS, a transactional id; -1: none."""
        return self.leader(log, abs(java_hash(name)) % COORDINATORS)

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """The numbers of the brokers whose copy of the partition is complete."""
        return set(self.admin.list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions[partition].isrs)

    def unread_bytes(self) -> int:
        """What clients have sent in the clear, and frozen brokers have not read: in the kernel's buffers of both."""
        ports = {f"{broker.clear:04X}" for broker in self.brokers}
        total = 0
        tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
        for line in chain.from_iterable(tables):
            _, local, remote, _, queues, *_ = line.split()
            unsent, unread = (int(number, 16) for number in queues.split(":"))
            total += unread * (local.partition(":")[2] in ports) + unsent * (remote.partition(":")[2] in ports)
        return total

    # -- what is there -----------------------------------------------------------------------------------------------

    def size(self, topic: str) -> int:
        """How many records the topic has got, markers of transactions among them."""
        partitions = self.admin.list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions
        latest: Any = OffsetSpec
        ends = done(self.admin.list_offsets({TopicPartition(topic, each): latest.latest() for each in partitions}))
        return sum(end.offset for end in ends)

    def records(self, topic: str, *, committed_only: bool = True) -> list[Message[Any, Any]]:
        """All records of the topic, partition by partition, in order."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            partitions = consumer.list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions
            return read(consumer, topic, partitions)
        finally:
            consumer.close()


class Broker:
    """One broker of a cluster: a process, a folder and five ports."""

    def __init__(
        self, folder: Path, identity: dict[str, str], settings: str, values: dict[str, str], java_options: Sequence[str]
    ) -> None:
        self.node = node = int(identity["node.id"])
        self.frozen = False
        self.clear, self.sasl, self.tls, self.sasl_tls = free_port(), free_port(), free_port(), free_port()
        self._folder = folder
        self._java_options = java_options
        self._process: subprocess.Popen[bytes] | None = None
        data = folder / "data"
        data.mkdir(parents=True)
        shutil.copy(kafka_jars.home() / kafka_jars.FORMATTED, data)
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in identity.items()))
        ports = {"clear": self.clear, "sasl": self.sasl, "tls": self.tls, "sasl_tls": self.sasl_tls}
        values = values | {name: str(port) for name, port in ports.items()}
        (folder / "server.properties").write_text(settings.format(node=node, folder=folder, **values))

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        return (self._folder / "output").read_text()

    def start(self) -> None:
        """Start unless it runs already, and return when it answers."""
        self.spawn()
        until(self._answers, f"broker {self.node} answers", START_SECONDS)

    def stop(self) -> None:
        """Stop in good order: it hands its partitions to other brokers first."""
        self.terminate()
        self.end()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process, self.frozen = None, False

    def freeze(self) -> None:
        if self._process is not None and not self.frozen:
            stop(self._process)
            self.frozen = True

    def thaw(self) -> None:
        if self._process is not None and self.frozen:
            self._process.send_signal(signal.SIGCONT)
            self.frozen = False

    def spawn(self) -> None:
        """Start, or thaw; it serves some time later."""
        self.thaw()
        if self.running:
            return
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [*kafka_jars.command(*MEMORY, *self._java_options), "kafka.Kafka", self._folder / "server.properties"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            )

    def terminate(self) -> None:
        self.thaw()
        if self._process is not None and self.running:
            self._process.terminate()

    def end(self) -> None:
        """Wait until it has ended; when it can't, because the others are gone too, kill it."""
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS / 6)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def _answers(self) -> bool:
        if not self.running:
            raise RuntimeError(f"Kafka's broker {self.node} did not start:\n{self.output}")
        try:
            return self.node in asking(self.clear).list_topics(timeout=2).brokers
        except KafkaException:
            return False


# -- asking ----------------------------------------------------------------------------------------------------------


def java_hash(text: str) -> int:
    """String.hashCode."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def asking(port: int) -> AdminClient:
    """A client of one broker."""
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})


def done(futures: dict[Any, Any]) -> list[Any]:
    """What an admin's requests resulted in."""
    return [future.result(ASK_SECONDS) for future in futures.values()]


def until(condition: Callable[[], bool], what: str, seconds: float = ASK_SECONDS) -> None:
    """Wait for a condition; each look at it asks a broker, which takes a moment."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} seconds: {what}")
        time.sleep(0.02)


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether all partitions of the topic have a leader, as far as this broker knows."""
    found = admin.list_topics(topic, timeout=ASK_SECONDS).topics[topic].partitions.values()
    return len(found) == partitions and all(partition.leader >= 0 for partition in found)


def read(consumer: Any, topic: str, partitions: Iterable[int]) -> list[Message[Any, Any]]:
    """The records of these partitions, to the end of each."""
    records: dict[int, list[Message[Any, Any]]] = {partition: [] for partition in partitions}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in records])
    left = set(records)
    deadline = time.monotonic() + ASK_SECONDS
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} could not be read to the end of its partitions {left}")
        for record in consumer.consume(10_000, timeout=0.02):
            error = record.error()
            if error is None:
                records[record.partition()].append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(record.partition())
            elif not error.retriable():
                raise KafkaException(error)
    return [record for partition in sorted(records) for record in records[partition]]


# -- making it quick -------------------------------------------------------------------------------------------------


def install() -> None:
    """Download what is missing, and run a broker once so that Java can keep the classes that it loads."""
    kafka_jars.download()
    options = (f"-XX:ArchiveClassesAtExit={kafka_jars.home() / kafka_jars.CLASSES}", "-Xlog:disable")
    with Kafka(java_options=options) as server:
        server.records(server.create_topic())
        server.stop()


# -- files -----------------------------------------------------------------------------------------------------------


def small_uuid() -> str:
    """A UUID as Kafka writes it; one that begins with a dash would look like an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return small_uuid() if text.startswith("-") else text


def make_certificates(folder: Path) -> None:
    """An authority, and certificates of it for the server at localhost and for a client."""
    new = "-newkey rsa:2048 -nodes -days 2"
    openssl(folder, f"req -x509 {new} -subj /CN=ca -keyout ca-key.pem -out ca.pem")
    for name, subject in (("server", "localhost"), ("client", "client")):
        signed = "-CA ca.pem -CAkey ca-key.pem -addext subjectAltName=DNS:localhost"
        openssl(folder, f"req -x509 {new} -subj /CN={subject} {signed} -keyout {name}-key.pem -out {name}-cert.pem")
    files = ("server-key.pem", "server-cert.pem", "ca.pem")
    (folder / "server.pem").write_text("".join((folder / file).read_text() for file in files))


def openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
