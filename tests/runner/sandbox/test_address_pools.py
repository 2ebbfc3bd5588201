from runner.sandbox.address_pools import free_networks


def network(*subnets):
    return {"IPAM": {"Config": [{"Subnet": subnet} for subnet in subnets]}}


def test_an_engine_that_was_told_nothing_gives_31_less_its_own_bridge():
    assert free_networks({}, [network("172.17.0.0/16"), {"IPAM": {"Config": None}}, {}]) == 30


def test_only_what_lies_in_the_pools_is_taken():
    info = {"DefaultAddressPools": [{"Base": "10.213.0.0/29", "Size": 30}, {"Base": "10.214.0.0/24", "Size": 26}]}
    assert free_networks(info, [network("10.212.0.0/24"), network("fd00::/64")]) == 6
    assert free_networks(info, [network("10.213.0.4/30", "fd00::/64"), network("10.214.0.0/26")]) == 4
