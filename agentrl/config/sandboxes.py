"""Keys of sandboxes: which, how strong, how many."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter

from agentrl.config.base import KindSection, Names, OneOf, Section


class LimitsSection(Section):
    """Hard limits of one sandbox; see `agentrl.sandbox.SandboxLimits`."""

    wall_s: float = Field(default=10.0, gt=0)
    """Wall-clock seconds per command."""
    memory_mb: int = Field(default=512, ge=32)
    """MiB of memory of all processes together."""
    processes: int = Field(default=32, ge=4)
    """Processes and threads alive at once."""
    disk_mb: int = Field(default=64, ge=1)
    """MiB the sandbox may write."""


class ContainerLimits(LimitsSection):
    """Hard limits of one container."""

    cpus: float = Field(default=1.0, gt=0)
    """CPU cores of all processes together."""


class PoolSection(Section):
    """Numbers of sandboxes. With `runtime: ray` the workers share them."""

    max_open: int = Field(default=256, ge=1)
    """Rollouts with a sandbox at once; those beyond it wait, outside their time limits. One that
    grades in a second sandbox does not wait for it."""
    max_uses: int = Field(default=1, ge=1)
    """Rollouts a sandbox serves, wiped between them; 1 gives each rollout a sandbox of its own.
    Kinds that cannot be wiped (`process`) always serve once."""


class ContainerPool(PoolSection):
    """Numbers of containers; each takes a while to start."""

    warm: int = Field(default=0, ge=0)
    """Containers started ahead of use, of each image and limits in use."""


class HostSandbox(KindSection):
    """Sandboxes of this machine's own kernel, without a daemon."""

    bare: ClassVar[str] = "backend"

    backend: str = "auto"
    """Where the model's code runs: `bubblewrap`, `userns` or `process`; `auto` takes the first of
    these that works here."""
    read_only: Annotated[tuple[str, ...], Names.FOLDER] = ()
    """Directories of this machine that programs see, read-only, at the same paths."""
    limits: LimitsSection = LimitsSection()
    """Hard limits of every sandbox."""
    pool: PoolSection = PoolSection()
    """How many sandboxes there are."""

    @classmethod
    def is_kind(cls, name: Any) -> bool:
        """True for any name that is not one of a container or pod sandbox."""
        others = (ContainerSandbox, PodSandbox)
        return isinstance(name, str) and not any(kind.is_kind(name) for kind in others)


class ContainerSandbox(KindSection):
    """Containers, or what an import string names."""

    bare: ClassVar[str] = "backend"

    backend: Annotated[str, Names.CODE] = "docker"
    """Or `docker`, or the import string of a `SandboxBackend`."""
    image: str = "agentrl-sandbox"
    """Container image of tasks that name none, made by `agentrl sandbox image build`."""
    runtime: str = ""
    """Container runtime of the daemon, as `runsc` for gVisor; empty takes its default."""
    read_only: Annotated[tuple[str, ...], Names.FOLDER] = ()
    """Directories of this machine that programs see, read-only, at the same paths."""
    limits: ContainerLimits = ContainerLimits()
    """Hard limits of every sandbox."""
    pool: ContainerPool = ContainerPool()
    """How many sandboxes there are."""

    @classmethod
    def is_kind(cls, name: Any) -> bool:
        """True for `docker` and for an import string."""
        return isinstance(name, str) and (name == "docker" or ":" in name)


class PodSandbox(KindSection):
    """Pods of a Kubernetes cluster, that of KUBECONFIG and its current context."""

    bare: ClassVar[str] = "backend"

    backend: Literal["kubernetes"] = "kubernetes"
    """Or `kubernetes`."""
    image: str = "python:3.12-slim"
    """Container image of tasks that name none; it needs Python 3.9 or newer and no VOLUME."""
    runtime: str = ""
    """A `RuntimeClass` of the cluster, as one for gVisor; empty takes its default."""
    network: Literal["policy", "none"] = "policy"
    """`policy`: a network policy keeps the network away, as the first pod tries out; `none`:
    programs have no internet sockets at all, for clusters that follow no policies."""
    pod: dict[str, Any] = Field(default_factory=dict)
    """Where pods run: `namespace`, without which they are in that of the context, and fields of
    their `spec`, as `nodeSelector`, `tolerations` and `imagePullSecrets`."""
    limits: ContainerLimits = ContainerLimits()
    """Hard limits of every sandbox."""
    pool: ContainerPool = ContainerPool()
    """How many sandboxes there are."""


AnySandbox = HostSandbox | ContainerSandbox | PodSandbox
SandboxSection = Annotated[AnySandbox, OneOf(HostSandbox, ContainerSandbox, PodSandbox)]
"""Where the model's code runs."""

_SECTION: TypeAdapter[AnySandbox] = TypeAdapter(SandboxSection)


def sandbox_section(backend: str, **keys: Any) -> AnySandbox:
    """The section of a backend, as a run file with these keys would have it.

    Example:
        >>> sandbox_section("docker").image
        'agentrl-sandbox'
    """
    return _SECTION.validate_python({"backend": backend, **keys})
