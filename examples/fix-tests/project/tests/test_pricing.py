import unittest

from pricing import discounted


class DiscountedTest(unittest.TestCase):
    def test_no_discount(self):
        self.assertEqual(discounted(1000, 0), 1000)

    def test_a_quarter_off(self):
        self.assertEqual(discounted(1000, 25), 750)

    def test_everything_off(self):
        self.assertEqual(discounted(1000, 100), 0)

    def test_impossible_discount(self):
        with self.assertRaises(ValueError):
            discounted(1000, 101)


if __name__ == "__main__":
    unittest.main()
