"""How many networks an engine can still give. An episode with a network takes one; without one it takes none."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, ip_network
from typing import Any

# What an engine uses that was told of none: 31 networks in all (libnetwork's own defaults).
DEFAULT_POOLS = (
    *({"Base": f"172.{second}.0.0/16", "Size": 16} for second in range(17, 32)),
    {"Base": "192.168.0.0/16", "Size": 20},
)


def free_networks(info: Mapping[str, Any], networks: Iterable[Mapping[str, Any]]) -> int:
    """Networks left of the pools in `info` (of `/info`), when `networks` (of `/networks`) stand; those outside the pools take none."""
    pools = [(ip_network(pool["Base"]), pool["Size"]) for pool in info.get("DefaultAddressPools") or DEFAULT_POOLS]
    taken = list(_subnets(networks))
    capacity = sum(2 ** (size - base.prefixlen) for base, size in pools)
    return capacity - sum(any(subnet.overlaps(base) for base, _ in pools) for subnet in taken)


def _subnets(networks: Iterable[Mapping[str, Any]]) -> Iterable[IPv4Network]:
    for network in networks:
        for given in (network.get("IPAM") or {}).get("Config") or []:
            subnet = ip_network(given["Subnet"])
            if subnet.version == 4:
                yield subnet
