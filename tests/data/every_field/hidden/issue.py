from shop.prices import total


def test_the_sum():
    assert total([1, 2]) == 3


def test_nothing():
    from shop.rates import FULL

    assert FULL == "full"
