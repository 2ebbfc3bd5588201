"""A task's images: built once per content on a node, found by their tag afterwards."""

from collections.abc import Mapping

from runner.sandbox.archives import pack_context
from runner.sandbox.base import Backend
from runner.sandbox.labels import ROLE, TASK
from runner.sandbox.locks import locked
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.task import EnvironmentSpec, SandboxTask


def tag_of(task: SandboxTask, role: str) -> str:
    return f"assay/{task.digest[:12]}:{role}"


async def ensure_image(node: Node, task: SandboxTask, spec: EnvironmentSpec, role: str, timeout: float, args: Mapping[str, str]) -> str:
    """The name of the image for `spec`. Two episodes of one task build it once; a tag that exists is never built again."""
    if spec.image:
        return await _existing(node.backend, spec.image)
    if spec.folder is None:
        raise SandboxFailure(Reason.CONTEXT_MISSING, f"{task.name}: neither a Dockerfile nor docker_image for the {role}; compile the bank")
    tag = tag_of(task, role)
    if await node.backend.image(tag):
        return tag
    try:
        async with locked(node.folder / "builds" / tag.replace("/", "_"), timeout):
            if not await node.backend.image(tag):
                with pack_context(spec.folder) as context:
                    labels = {TASK: task.digest, ROLE: role}
                    await node.backend.build(context, tag, labels=labels, timeout=timeout, args=args)
    except TimeoutError:
        raise SandboxFailure(Reason.BUILD_TIMEOUT, f"{tag}: another process has been building it for {timeout:.0f} s") from None
    return tag


async def _existing(backend: Backend, image: str) -> str:
    if await backend.image(image) is None:
        raise SandboxFailure(Reason.IMAGE_MISSING, f"docker_image: {image!r} is not on this node; pull or build it first")
    return image
