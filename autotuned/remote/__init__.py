"""The shared store: a second level behind the user's own, for many hosts."""
