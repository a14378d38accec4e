"""The demo's untidy agent: the tests pass, but it leaves its debug output in the source and no note."""

import pathlib


def main():
    source = pathlib.Path("pricing.py")
    text = source.read_text().replace("percent // 10\n", "percent // 100\n")
    source.write_text(text.replace("    return price -", '    print("debug:", price, percent)\n    return price -'))
    print("tests should pass now")


if __name__ == "__main__":
    main()
