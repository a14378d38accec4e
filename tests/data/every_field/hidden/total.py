from shop.prices import total


def test_total():
    assert total([10, 20]) == 30
