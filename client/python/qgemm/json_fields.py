"""Reads the fields of JSON objects; DataLoss names the first that is not as it should be (as client/bundle/json_fields.h)."""

import json

from qgemm.errors import DataLoss

_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1
_MISSING = object()


def parse_object(text, what):
    """A JSON object's text. Two values of one name would be one to us and the other to another reader: DataLoss."""

    def without_repeats(pairs):
        row = dict(pairs)
        if len(row) != len(pairs):
            names = [name for name, _ in pairs]
            raise DataLoss(f'{what} has "{next(name for name in names if names.count(name) > 1)}" twice')
        return row

    try:
        row = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise DataLoss(f"{what} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataLoss(f"{what} is no JSON object")
    return row


class Fields:
    """An object's fields. `where` names it in messages."""

    def __init__(self, row, where):
        if not isinstance(row, dict):
            raise DataLoss(f"{where} must be an object")
        self.row, self.where = row, where

    def __contains__(self, name):
        return self.row.get(name) is not None

    def _read(self, name, allowed, is_right):
        value = self.row.get(name, _MISSING)
        if value is _MISSING or value is None:
            raise DataLoss(f"{self.where}.{name} is missing")
        if not is_right(value):
            raise DataLoss(f"{self.where}.{name} must be {allowed}")
        return value

    def whole(self, name, low=0, high=_INT32):
        def is_right(value):
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

        return self._read(name, f"a whole number from {low} to {high}", is_right)

    def long(self, name, low=0):
        return self.whole(name, low, _INT64)

    def number(self, name):
        return self._read(name, "a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool))

    def flag(self, name):
        return self._read(name, "true or false", lambda value: isinstance(value, bool))

    def text(self, name):
        return self._read(name, "text", lambda value: isinstance(value, str))

    def word(self, name, words):
        return self._read(name, f"one of {' '.join(words)}", lambda value: isinstance(value, str) and value in words)

    def sha256(self, name):
        def is_right(value):
            return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")

        return self._read(name, "64 lower-case hexadecimal digits", is_right)

    def object(self, name):
        return Fields(self._read(name, "an object", lambda value: isinstance(value, dict)), f"{self.where}.{name}")

    def objects(self, name):
        """The Fields of an array's objects."""
        rows = self._read(name, "an array", lambda value: isinstance(value, list))
        return [Fields(row, f"{self.where}.{name}[{index}]") for index, row in enumerate(rows)]
