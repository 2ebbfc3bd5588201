"""How a gang can fail, and what Ray raises when a process or the whole cluster is gone."""

import ray

GONE = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.OwnerDiedError, ray.exceptions.NodeDiedError)
# What a dying cluster raises wherever it is asked something.
CLUSTER_GONE = (
    *GONE,
    ray.exceptions.RaySystemError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.RpcError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ActorPlacementGroupRemoved,
    ray.exceptions.TaskPlacementGroupRemoved,
)


def head_replaced(error: BaseException) -> bool:
    """Whether a new head answered in place of the one that was joined: by its cluster's other id, which Ray calls failed authentication."""
    return isinstance(error, ray.exceptions.AuthenticationError) and "WrongClusterID" in str(error)


class GangError(RuntimeError):
    """The cluster did not give the run its processes; the message says which and what to look at."""


class ProcessLost(GangError):
    """A process of the gang is gone for no fault of the run: another attempt may go on from the last checkpoint."""


class Unwanted(Exception):
    """The run was asked to stop before its first step."""
