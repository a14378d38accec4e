def total(prices):
    raise NotImplementedError
