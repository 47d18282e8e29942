"""The one exception that means "the user can fix this"."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of the user's, in one line of text; the command line prints it and exits with 2."""

    @classmethod
    def of(cls, field: str, value: object, allowed: str) -> UserError:
        """Name the field, the value that was given and what is allowed."""
        return cls(f"{field}={value!r} is not valid; allowed: {allowed}")
