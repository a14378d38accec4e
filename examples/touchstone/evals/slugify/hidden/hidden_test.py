import unittest

from text import slugify


class Slugs(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slugify("Hello, World"), "hello-world")

    def test_ends(self):
        self.assertEqual(slugify("  (a)  "), "a")

    def test_nothing(self):
        self.assertEqual(slugify("?!"), "")
