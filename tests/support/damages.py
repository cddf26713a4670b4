"""Damage that may happen to a file between two starts."""

DAMAGES = {
    "cut": lambda content: content[:200],
    "empty": lambda content: b"",
    "changed": lambda content: content[:-5] + b"xxxxx",
}
