"""`datakit inspect`."""


def inspect(target: str) -> int:
    """x"""
    return 0
