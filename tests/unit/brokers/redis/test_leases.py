from postroad.brokers.redis.leases import Leases

LEASES = Leases("inventory", ["a", "b"], "host:1:x", milliseconds=3000)


def test_the_keys_of_a_group() -> None:
    assert LEASES.key("a") == "postroad:inventory:lease:a"
    keys = ("postroad:inventory:processes", "postroad:inventory:lease:a", "postroad:inventory:lease:b")
    assert LEASES.renew()[2:] == (3, *keys, "host:1:x", 3000)
    assert LEASES.release(["b"])[2:] == (2, keys[0], keys[2], "host:1:x", "")
    assert LEASES.release([], leaves=True)[2:] == (1, keys[0], "host:1:x", "leaves")


def test_what_the_server_says() -> None:
    assert LEASES.of_reply([1, [0, 1]]) == (1, {"b": True})
    assert LEASES.of_reply([2, [2, 1]]) == (2, {"a": False, "b": True}), "a was taken now"
