"""Compression of stored models: trees shrink to a fifth, and what is smaller is shuffled, sorted and read faster."""

from __future__ import annotations

import pyarrow as pa

SUFFIX = ".zst"
"""End of the name of a data file that is compressed: one Zstandard frame."""

MIN_BYTES = 4096
"""A model smaller than this is stored as it is: less would be saved than a read costs."""

_MAX_SHARE = 0.9
_LEVEL = 3


def pack(data: bytes, data_file: str) -> tuple[bytes, str]:
    """Return a data file compressed, under its new name, or as it is where that does not pay.

    Examples
    --------
    >>> pack(bytes(5000), "model.ubj")[1], pack(bytes(50), "model.ubj")[1]
    ('model.ubj.zst', 'model.ubj')
    """
    if len(data) < MIN_BYTES:
        return data, data_file
    packed = pa.Codec("zstd", _LEVEL).compress(data, asbytes=True)
    return (packed, data_file + SUFFIX) if len(packed) <= _MAX_SHARE * len(data) else (data, data_file)


def unpack(data: bytes, data_file: str) -> tuple[bytes, str]:
    """Return a data file as it was before `pack`.

    Raises
    ------
    ValueError
        The bytes are no Zstandard frame.
    """
    if not data_file.endswith(SUFFIX):
        return data, data_file
    try:
        # A stream: the codec itself must be told the size.
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return stream.read(), data_file.removesuffix(SUFFIX)
    except OSError as e:
        raise ValueError(f"no Zstandard frame: {e}") from e
